// @ts-check
/** The frame of every page: navigation, the state of the connection, pause, theme, and who is signed in. */

import { ApiError, connection } from "./core/api.js";
import * as format from "./core/format.js";
import { live } from "./core/live.js";
import { go, hrefOf } from "./core/router.js";
import { html, render } from "./core/template.js";
import { id, sentence } from "./parts/bits.js";
import { openDialog } from "./parts/dialog.js";
import { held } from "./core/held.js";
import { heldLine } from "./parts/held.js";
import { pages } from "./pages/index.js";

const THEME = "tenure.theme";
const THEMES = ["auto", "light", "dark"];
/** The breakpoint of narrow screens, the same as in console.css. */
const narrow = matchMedia("(max-width: 40rem)");

export class Shell {
  #container;
  #signOut;
  /** @type {import("./core/types.js").Me | null} */
  #me = null;
  /** @type {import("./core/router.js").PageType | null} */
  #page = null;
  /** @type {string | null} */
  #shownSession = null;
  #isMenuOpen = false;
  #live = document.createElement("p");
  /** Where pages draw themselves. */
  main = document.createElement("main");

  /** @param {HTMLElement} container @param {{signOut: () => void}} actions */
  constructor(container, { signOut }) {
    this.#container = container;
    this.#signOut = signOut;
    this.main.id = "main";
    this.main.tabIndex = -1;
    this.#live.className = "off-screen";
    this.#live.setAttribute("aria-live", "polite");
    connection.addEventListener("change", () => this.#draw());
    live.addEventListener("change", () => this.#draw());
    narrow.addEventListener("change", () => this.#draw());
    held.addEventListener("change", () => this.#draw());
  }

  /**
   * @param {import("./core/types.js").Me} me
   * @param {import("./core/router.js").PageType | null} page
   * @param {Record<string, string>} params
   */
  frame(me, page, params) {
    this.#me = me;
    this.#page = page;
    this.#shownSession = params.sessionId ?? null;
    this.#isMenuOpen = false;
    document.title = page === null ? "Not found · Tenure" : `${page.title} · Tenure`;
    this.#draw();
  }

  /** @param {unknown} error */
  waiting(error) {
    const detail = error instanceof ApiError ? sentence(error.detail) : "The service does not answer.";
    render(
      html`<div class="alone" role="status"><h1>Waiting for the service</h1><p>${detail}</p><p>The console tries again automatically.</p></div>`,
      this.#container,
    );
  }

  /** @param {{element: HTMLElement}} signIn */
  signIn(signIn) {
    this.#me = null;
    document.title = "Sign in · Tenure";
    // A dialog whose content is shown only once, such as a new key, stays open.
    for (const dialog of document.querySelectorAll("dialog:not([data-kept])")) /** @type {HTMLDialogElement} */ (dialog).close();
    render(html`${signIn.element}`, this.#container);
    signIn.element.querySelector("input")?.focus();
  }

  notFound() {
    render(
      html`<h1 tabindex="-1">Not found</h1>
        <p>The console has no page with this address. <a href="${hrefOf("")}">Go to the overview</a></p>`,
      this.main,
    );
    this.focusHeading();
  }

  focusHeading() {
    scrollTo(0, 0);
    const heading = this.main.querySelector("h1");
    if (heading === null) return;
    heading.tabIndex = -1;
    heading.focus({ preventScroll: true });
  }

  /** @param {string} text */
  announce(text) {
    this.#live.textContent = text;
  }

  #draw() {
    const me = this.#me;
    if (me === null) return;
    render(
      html`
        <a class="skip" href="#main" @click=${(/** @type {Event} */ event) => this.#skip(event)}>Skip to the content</a>
        <header class="top">
          <button
            type="button"
            class="menu plain"
            aria-expanded="${this.#isMenuOpen}"
            aria-controls="nav"
            @click=${() => this.#toggleMenu()}
          >
            <span class="menu-lines" aria-hidden="true"></span>Menu
          </button>
          <a class="brand" href="${hrefOf("")}"><span class="mark" aria-hidden="true"></span>Tenure</a>
          <form class="find" role="search" @submit=${(/** @type {SubmitEvent} */ event) => find(event)}>
            <input name="id" type="search" aria-label="Find an id" placeholder="${narrow.matches ? "Find id" : "Find: id of a session, user, tenant, capacity"}" autocomplete="off" autocapitalize="off" spellcheck="false">
          </form>
          <span class="grow"></span>
          <tenure-clock class="clock" title="The server's time"></tenure-clock>
          <span class="live ${connection.lost ? "is-lost" : live.isPaused ? "is-paused" : ""}">
            <span class="pulse" aria-hidden="true"></span>${connection.lost ? "Lost" : live.isPaused ? "Paused" : "Live"}
          </span>
          <button type="button" class="plain" aria-pressed="${live.isPaused}" @click=${() => (live.isPaused = !live.isPaused)}>
            ${live.isPaused ? "Resume" : "Pause"}<span class="only-wide"> updates</span>
          </button>
          ${live.isPaused ? html`<button type="button" class="plain" @click=${() => live.refresh()}>Refresh</button>` : ""}
          <button type="button" class="plain who" @click=${() => this.#showAccount(me)}>${nameOf(me)}</button>
        </header>
        ${connection.lost ? banner(connection.lost) : ""} ${heldLine(this.#shownSession)}
        <div class="body">
          <nav id="nav" class="${this.#isMenuOpen ? "is-open" : ""}" aria-label="Pages">
            <ul>
              ${navigation(me).map(
                (page) => html`<li>
                  <a href="${hrefOf(page.path)}" aria-current="${this.#page === page || this.#page?.path.startsWith(`${page.path}/`) ? "page" : null}">${page.nav?.label}</a>
                </li>`,
              )}
            </ul>
          </nav>
          ${this.main}
        </div>
        ${this.#live}
      `,
      this.#container,
    );
  }

  /** @param {Event} event */
  #skip(event) {
    event.preventDefault();
    this.main.focus();
  }

  #toggleMenu() {
    this.#isMenuOpen = !this.#isMenuOpen;
    this.#draw();
  }

  /** @param {import("./core/types.js").Me} me */
  #showAccount(me) {
    openDialog(
      me.anonymous ? "No sign-in needed" : "Signed in",
      ({ close, update }) => html`
        <dl class="facts">
          ${me.anonymous
            ? html`<dt>Access</dt><dd>Open without a sign-in, because no API key exists. Create the first key with
                <code>tenure keys create</code>.</dd>`
            : html`<dt>Name</dt><dd>${me.name || "–"}</dd><dt>Credential</dt><dd>${me.subject}</dd>`}
          <dt>Role</dt><dd>${me.role}</dd>
          ${me.tenantObjectId ? html`<dt>Tenant</dt><dd>${id(me.tenantObjectId, { label: "tenant", isShort: false })}</dd>` : ""}
          ${me.expiresAt ? html`<dt>Expires</dt><dd>${format.dateTime(me.expiresAt)} UTC</dd>` : ""}
        </dl>
        <fieldset class="themes">
          <legend>Theme</legend>
          ${THEMES.map(
            (theme) => html`<label><input type="radio" name="theme" value="${theme}" .checked=${theme === currentTheme()}
              @change=${() => (setTheme(theme), update())}> ${theme === "auto" ? "as the system" : theme}</label>`,
          )}
        </fieldset>
        <div class="buttons">
          ${me.anonymous ? "" : html`<button type="button" class="plain" @click=${() => (close(), this.#signOut())}>Sign out</button>`}
          <button type="button" class="primary" @click=${close}>Close</button>
        </div>
      `,
    );
  }
}

/** @param {SubmitEvent} event */
function find(event) {
  event.preventDefault();
  const field = /** @type {HTMLInputElement} */ (/** @type {HTMLFormElement} */ (event.target).elements.namedItem("id"));
  if (field.value.trim() === "") return;
  go(`find?id=${encodeURIComponent(field.value.trim())}`);
  field.value = "";
}

/** @param {import("./core/types.js").Me} me */
const nameOf = (me) => (me.anonymous ? `open · ${me.role}` : `${me.name || me.subject} · ${me.role}`);

/** The pages that the caller may use. @param {import("./core/types.js").Me} me */
function navigation(me) {
  return pages
    .filter(({ nav }) => nav !== undefined)
    .filter(({ nav }) => nav?.needs === undefined || nav.needs.includes(me.role))
    .filter(({ nav }) => !(nav?.allTenants && me.tenantObjectId))
    .sort((one, other) => (one.nav?.order ?? 0) - (other.nav?.order ?? 0));
}

/** @param {import("./core/api.js").Loss} loss */
const banner = ({ since, detail, requestId }) => html`
  <div class="banner" role="alert">
    <p>
      <strong>Connection lost since ${format.time(since)} UTC.</strong>
      ${detail === "" ? "The service does not answer." : sentence(detail)} This page shows its last data, and updates
      once the service answers.
      ${requestId === null ? "" : html`<span class="small">Request ${requestId}</span>`}
    </p>
    <button type="button" class="plain" @click=${() => live.refresh()}>Try now</button>
  </div>
`;

function currentTheme() {
  return document.documentElement.dataset.theme ?? "auto";
}

/** @param {string} theme */
function setTheme(theme) {
  if (theme === "auto") delete document.documentElement.dataset.theme;
  else document.documentElement.dataset.theme = theme;
  try {
    if (theme === "auto") localStorage.removeItem(THEME);
    else localStorage.setItem(THEME, theme);
  } catch {
    // Storage is switched off: the choice lasts until the page is loaded again.
  }
}
