// @ts-check
/**
 * The object that each page gets. It has the address of the page and the caller, loads data until the page is closed
 * (`watch`), and goes to other pages.
 */

import { acted } from "./api.js";
import { live, Watch } from "./live.js";
import { go, hrefOf } from "./router.js";

export class View {
  /** @type {Set<Watch<any>>} */
  #watches = new Set();
  #update;
  #announce;
  #isClosed = false;

  /**
   * @param {object} options
   * @param {Record<string, string>} options.params The parts of the address that vary.
   * @param {import("./types.js").Me} options.me
   * @param {() => void} options.update Draw the page again soon.
   * @param {(text: string) => void} options.announce
   */
  constructor({ params, me, update, announce }) {
    this.params = params;
    this.me = me;
    this.#update = update;
    this.#announce = announce;
    /** The query of the address. */
    this.query = new URLSearchParams(location.search);
  }

  /** Draw the page again soon. */
  update() {
    this.#update();
  }

  /** Make a screen reader say what has changed on the page. @param {string} text */
  announce(text) {
    this.#announce(text);
  }

  /**
   * Load data from a path of the API now, and again about every `everyMs`. The page is drawn after each response.
   * @template [T=any]
   * @param {() => string | {path: string, query?: Record<string, unknown>, exact?: boolean} | null} address
   * @param {number} everyMs
   * @param {(event: import("./types.js").SessionEvent) => boolean} [concerns] If this returns true for an event, the
   *   data is loaded again soon. While the stream of events is closed, the data is loaded every two seconds even if
   *   `everyMs` is longer, but less often if responses take longer than 100 ms or ask for a longer pause.
   * @param {{timeoutMs?: number}} [options] `timeoutMs`: how long to wait for a response; 2500 by default.
   * @returns {Watch<T>}
   */
  watch(address, everyMs, concerns, { timeoutMs } = {}) {
    /** @type {Watch<T>} */
    const watch = new Watch(() => {
      const found = address();
      return typeof found === "string" ? { path: found } : found;
    }, everyMs, concerns ?? null, timeoutMs);
    watch.addEventListener("change", this.#update);
    this.#watches.add(watch);
    live.add(watch);
    return watch;
  }

  /**
   * Change the query of the address. Empty values are removed.
   * @param {Record<string, string | null | undefined>} changes
   * @param {{replace?: boolean}} [options] `replace`: the back button skips the previous address.
   */
  setQuery(changes, { replace = false } = {}) {
    // A field of a page that was closed may still report a change, but the address already belongs to the next page.
    if (this.#isClosed) return;
    acted.at = performance.now();
    for (const [name, value] of Object.entries(changes)) {
      if (value === null || value === undefined || value === "") this.query.delete(name);
      else this.query.set(name, value);
    }
    const query = this.query.toString();
    const url = location.pathname + (query === "" ? "" : `?${query}`);
    if (replace) history.replaceState(null, "", url);
    else history.pushState(null, "", url);
    this.#update();
  }

  /** A value of the query. @param {string} name @param {string} [otherwise] */
  value(name, otherwise = "") {
    return this.query.get(name) ?? otherwise;
  }

  /** The address of another page. @param {string} path */
  href(path) {
    return hrefOf(path);
  }

  /** Go to another page. @param {string} path */
  go(path) {
    go(path);
  }

  /** Whether the caller has one of these roles; the server decides in any case. @param {import("./types.js").Role[]} roles */
  may(...roles) {
    return roles.includes(this.me.role);
  }

  /** Whether the caller may read data of the whole installation: leases, jobs, alerts, windows. */
  get seesInstallation() {
    return this.may("reader", "operator") && this.me.tenantObjectId === null;
  }

  close() {
    this.#isClosed = true;
    for (const watch of this.#watches) live.remove(watch);
  }
}
