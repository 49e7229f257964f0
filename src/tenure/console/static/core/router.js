// @ts-check
/**
 * Finds the page for an address. An address is the path in the browser's address bar, relative to `<base href>`.
 *
 * A page is a class: `path` is its address, with `:name` for a part that varies, and `title` the text of its heading.
 * `main.js` constructs the page with a `View`, and calls `render()` of the page then and whenever something changes.
 */

/**
 * @typedef {object} PageClass
 * @property {string} path
 * @property {string} title
 * @property {{label: string, order: number, needs?: import("./types.js").Role[], allTenants?: boolean}} [nav]
 *   The entry in the navigation. `needs` are the roles that may use the page. With `allTenants`, a caller who is bound
 *   to a tenant may not use it.
 *
 * @typedef {object} Page
 * @property {() => unknown} render
 * @property {() => void} [close]
 *
 * @typedef {PageClass & {new (view: import("./view.js").View): Page}} PageType
 */

const base = new URL(".", document.baseURI);

/** The address of a page as an absolute path. @param {string} path Relative, such as `sessions?kind=2`. */
export const hrefOf = (path) => new URL(path, base).href.slice(base.origin.length);

/** The present address, relative to the console. */
export function currentPath() {
  const path = location.pathname;
  return path.startsWith(base.pathname) ? path.slice(base.pathname.length).replace(/\/$/, "") : "";
}

/**
 * @param {PageType[]} pages
 * @param {string} path
 * @returns {{page: PageType, params: Record<string, string>} | null}
 */
export function match(pages, path) {
  const parts = path.split("/");
  for (const page of pages) {
    const pattern = page.path.split("/");
    if (pattern.length !== parts.length) continue;
    /** @type {Record<string, string>} */
    const params = {};
    const fits = pattern.every((each, index) => {
      const given = parts[index] ?? "";
      if (!each.startsWith(":")) return each === given;
      params[each.slice(1)] = decoded(given);
      return given !== "";
    });
    if (fits) return { page, params };
  }
  return null;
}

/** @param {string} text */
function decoded(text) {
  try {
    return decodeURIComponent(text);
  } catch {
    return text;
  }
}

/**
 * Follow links inside the console without loading the page again.
 * @param {() => void} show
 */
export function listen(show) {
  addEventListener("popstate", show);
  document.addEventListener("click", (event) => {
    if (event.defaultPrevented || event.button !== 0) return;
    if (event.metaKey || event.ctrlKey || event.shiftKey || event.altKey) return;
    const link = event.target instanceof Element ? event.target.closest("a[href]") : null;
    if (!(link instanceof HTMLAnchorElement) || link.target || link.hasAttribute("download")) return;
    const url = new URL(link.href);
    if (url.origin !== base.origin || !url.pathname.startsWith(base.pathname)) return;
    if (url.pathname.startsWith(`${base.pathname}assets/`)) return;
    if (url.pathname === location.pathname && url.search === location.search && url.hash !== "") return;
    event.preventDefault();
    history.pushState(null, "", url);
    show();
  });
}

/**
 * Go to another page.
 * @param {string} path Relative to the console.
 * @param {{replace?: boolean}} [options] `replace`: the back button skips the present address.
 */
export function go(path, { replace = false } = {}) {
  if (replace) history.replaceState(null, "", hrefOf(path));
  else history.pushState(null, "", hrefOf(path));
  dispatchEvent(new PopStateEvent("popstate"));
}
