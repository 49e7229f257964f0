// @ts-check
/** Starts the console: identifies the caller, and shows the page of the address. */

import { ApiError, connection, request } from "./core/api.js";
import { live, Watch } from "./core/live.js";
import { currentPath, listen, match } from "./core/router.js";
import { render } from "./core/template.js";
import { View } from "./core/view.js";
import { pages } from "./pages/index.js";
import { Shell } from "./shell.js";
import { SignIn } from "./pages/sign-in.js";

/** How often the caller and the server's clock are read again. */
const ME_EVERY_MS = 30_000;
const RETRY_MS = 2_000;

class Console {
  #shell = new Shell(/** @type {HTMLElement} */ (document.getElementById("shell")), {
    signOut: () => void this.#signOut(),
  });
  /** @type {import("./core/types.js").Me | null} */
  #me = null;
  /** @type {{view: View, page: import("./core/router.js").Page, type: import("./core/router.js").PageType} | null} */
  #open = null;
  /** @type {Watch<import("./core/types.js").Me> | null} */
  #meWatch = null;
  #isAsked = false;
  #isSigningIn = false;

  async start() {
    listen(() => this.#show());
    connection.addEventListener("signed-out", () => this.#askToSignIn());
    while (this.#me === null && !this.#isSigningIn) {
      try {
        await this.#identify();
      } catch (error) {
        if (error instanceof ApiError && error.status === 401) return;
        this.#shell.waiting(error);
        await new Promise((resolve) => setTimeout(resolve, RETRY_MS));
      }
    }
  }

  async #identify() {
    this.#identified(await request("GET", "me"));
    this.#show({ focus: false });
  }

  /** @param {import("./core/types.js").Me} me */
  #identified(me) {
    this.#me = me;
    this.#isSigningIn = false;
    live.mayFollow = me.role !== "client";
    if (this.#meWatch !== null) return;
    // Ask again regularly: the role may change, the key may be revoked, and clocks drift.
    this.#meWatch = new Watch(() => ({ path: "me" }), ME_EVERY_MS);
    this.#meWatch.data = me;
    this.#meWatch.dueAt = performance.now() + ME_EVERY_MS;
    this.#meWatch.addEventListener("change", () => this.#identifiedAgain());
    live.add(this.#meWatch);
  }

  #identifiedAgain() {
    const me = this.#meWatch?.data ?? null;
    if (me === null || this.#me === null) return;
    const isChanged = me.role !== this.#me.role || me.subject !== this.#me.subject;
    this.#identified(me);
    if (isChanged) this.#show({ focus: false });
  }

  #askToSignIn() {
    if (this.#isSigningIn) return;
    this.#isSigningIn = true;
    this.#me = null;
    this.#close();
    if (this.#meWatch !== null) live.remove(this.#meWatch);
    this.#meWatch = null;
    const signIn = new SignIn((me) => {
      this.#identified(me);
      this.#show();
    });
    this.#shell.signIn(signIn);
  }

  async #signOut() {
    await request("POST", "sign-out");
    this.#askToSignIn();
  }

  #close() {
    this.#open?.page.close?.();
    this.#open?.view.close();
    this.#open = null;
  }

  /** Show the page of the present address. @param {{focus?: boolean}} [options] */
  #show({ focus = true } = {}) {
    const me = this.#me;
    if (me === null) return;
    const before = this.#open?.type;
    const params = this.#open?.view.params ?? {};
    this.#close();
    const found = match(pages, currentPath());
    const type = found?.page;
    this.#shell.frame(me, type ?? null, found?.params ?? {});
    if (found === null || type === undefined) {
      this.#shell.notFound();
      return;
    }
    const view = new View({
      params: found.params,
      me,
      update: () => this.#update(),
      announce: (text) => this.#shell.announce(text),
    });
    const page = new type(view);
    this.#open = { view, page, type };
    render("", this.#shell.main);
    this.#draw();
    if (focus && (before !== type || !isSame(params, found.params))) this.#shell.focusHeading();
  }

  #update() {
    if (this.#isAsked) return;
    this.#isAsked = true;
    requestAnimationFrame(() => {
      this.#isAsked = false;
      this.#draw();
    });
  }

  #draw() {
    if (this.#open === null) return;
    render(this.#open.page.render(), this.#shell.main);
  }
}

/** @param {Record<string, string>} one @param {Record<string, string>} other */
const isSame = (one, other) => JSON.stringify(one) === JSON.stringify(other);

void new Console().start();
