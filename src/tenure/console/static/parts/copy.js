// @ts-check
/**
 * `<tenure-copy value="…">`: a button that copies its value. Browsers offer `navigator.clipboard` only over HTTPS and on
 * localhost. Elsewhere, and if the browser refuses the permission, the button selects the value in a hidden field, and
 * copies the selection.
 */

import { notify } from "./notice.js";

const SHOWN_MS = 1_500;

/** @param {string} text */
export async function copy(text) {
  if (navigator.clipboard && isSecureContext) {
    try {
      await navigator.clipboard.writeText(text);
      return true;
    } catch {
      // The browser has refused the permission. Copying a selection may still work.
    }
  }
  const field = document.createElement("textarea");
  field.value = text;
  field.className = "off-screen";
  field.setAttribute("readonly", "");
  // If a dialog is open, the field must be inside the dialog: no element of the page behind a dialog can be focused.
  (document.querySelector("dialog[open]") ?? document.body).append(field);
  const focused = document.activeElement;
  field.select();
  const isCopied = document.execCommand("copy");
  field.remove();
  if (focused instanceof HTMLElement) focused.focus();
  return isCopied;
}

class TenureCopy extends HTMLElement {
  #button = document.createElement("button");

  connectedCallback() {
    if (this.#button.isConnected) return;
    this.#button.type = "button";
    this.#button.className = "copy";
    this.#button.addEventListener("click", (event) => {
      event.stopPropagation();
      void this.#copy();
    });
    this.#name();
    this.replaceChildren(this.#button);
  }

  static observedAttributes = ["label"];

  attributeChangedCallback() {
    this.#name();
  }

  #name() {
    const label = `Copy ${this.getAttribute("label") ?? "value"}`;
    this.#button.setAttribute("aria-label", label);
    this.#button.title = label;
  }

  async #copy() {
    const isCopied = await copy(this.getAttribute("value") ?? "");
    notify(isCopied ? "Copied." : "The browser does not allow copying. Select the text instead.");
    this.#button.classList.toggle("is-done", isCopied);
    setTimeout(() => this.#button.classList.remove("is-done"), SHOWN_MS);
  }
}

customElements.define("tenure-copy", TenureCopy);
