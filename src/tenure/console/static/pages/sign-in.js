// @ts-check
/** The sign-in, with an API key or at the OIDC issuer. The service keeps the credential in a cookie that scripts cannot read. */

import { request } from "../core/api.js";
import { html, render } from "../core/template.js";
import { problem } from "../parts/bits.js";

export class SignIn {
  element = document.createElement("main");
  #signedIn;
  #isSending = false;
  /** @type {unknown} */
  #error = null;
  /** Where to sign in at the OIDC issuer, if the service has one. @type {{issuer: string, address: string} | null} */
  #oidc = null;

  /** @param {(me: import("../core/types.js").Me) => void} signedIn */
  constructor(signedIn) {
    this.#signedIn = signedIn;
    this.element.className = "alone";
    this.#draw();
    void this.#findIssuer();
  }

  async #findIssuer() {
    try {
      this.#oidc = (await request("GET", "sign-in")).oidc;
      this.#draw();
    } catch {
      // Show only the field for a key.
    }
  }

  #draw() {
    render(
      html`
        <div class="brand big"><span class="mark" aria-hidden="true"></span>Tenure</div>
        <h1>Sign in</h1>
        ${this.#oidc === null
          ? ""
          : html`<a class="button primary" href="${this.#oidc.address}">Sign in with ${this.#oidc.issuer}</a>
              <p class="or">or with an API key</p>`}
        <form @submit=${(/** @type {SubmitEvent} */ event) => void this.#send(event)}>
          <label class="field">
            <span>API key</span>
            <input
              name="credential"
              type="password"
              autocomplete="current-password"
              required
              spellcheck="false"
              aria-describedby="credential-help"
            >
          </label>
          <p class="small" id="credential-help">
            The key stays in a cookie that scripts cannot read. To look around, a key of role <em>reader</em> is enough.
          </p>
          ${this.#error === null ? "" : problem(this.#error)}
          <button type="submit" class="${this.#oidc === null ? "primary" : ""}" ?disabled=${this.#isSending}>${this.#isSending ? "Signing in…" : "Sign in"}</button>
        </form>
        <div class="empty">
          <p>No key yet? Create one on a machine that can reach the database:</p>
          <p class="command">
            <code>tenure keys create --name me --role operator --expires 90d --database …</code>
            <tenure-copy value="tenure keys create --name me --role operator --expires 90d --database " label="command"></tenure-copy>
          </p>
        </div>
      `,
      this.element,
    );
  }

  /** @param {SubmitEvent} event */
  async #send(event) {
    event.preventDefault();
    const field = /** @type {HTMLInputElement} */ (this.element.querySelector("input[name=credential]"));
    this.#isSending = true;
    this.#error = null;
    this.#draw();
    try {
      const me = await request("POST", "sign-in", { body: { credential: field.value.trim() } });
      field.value = "";
      this.#signedIn(me);
    } catch (error) {
      this.#error = error;
    } finally {
      this.#isSending = false;
      this.#draw();
    }
    if (this.#error !== null) field.focus();
  }
}
