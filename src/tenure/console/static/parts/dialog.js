// @ts-check
/**
 * Dialogs. `openDialog` shows a template in a `<dialog>`, which Escape closes; the focus then returns to where it was.
 * `confirm` asks whether to run an action; with `typed`, the button is enabled once a person has typed that word.
 */

import { ApiError, ConnectionLost } from "../core/api.js";
import { html, render } from "../core/template.js";
import { problem } from "./bits.js";

/**
 * @typedef {object} DialogHandle
 * @property {() => void} update Draw the dialog again.
 * @property {() => void} close
 * @property {Promise<void>} closed
 * @property {HTMLDialogElement} element
 */

let number = 0;

/**
 * @param {string} title
 * @param {(dialog: DialogHandle) => unknown} content
 * @param {{mayClose?: () => boolean}} [options] While `mayClose` returns false, Escape does not close the dialog.
 * @returns {DialogHandle}
 */
export function openDialog(title, content, { mayClose = () => true } = {}) {
  const element = document.createElement("dialog");
  const titleId = `dialog-${(number += 1)}`;
  element.setAttribute("aria-labelledby", titleId);
  element.addEventListener("cancel", (event) => {
    if (!mayClose()) event.preventDefault();
  });
  /** @type {DialogHandle} */
  const handle = {
    element,
    update: () =>
      render(
        html`<h2 id="${titleId}">${title}</h2>
          ${content(handle)}`,
        element,
      ),
    close: () => element.close(),
    closed: new Promise((resolve) =>
      element.addEventListener("close", () => {
        element.remove();
        resolve();
      }),
    ),
  };
  document.body.append(element);
  handle.update();
  element.showModal();
  return handle;
}

/**
 * Ask whether to run an action, and run it. If the action fails, the dialog stays open and says why.
 * @param {object} options
 * @param {string} options.title
 * @param {unknown} options.body
 * @param {string} options.action The text of the button.
 * @param {string} [options.typed] What a person has to type first.
 * @param {boolean} [options.danger]
 * @param {() => Promise<void>} options.run
 * @returns {Promise<boolean>} Whether the action succeeded.
 */
export async function confirm({ title, body, action, typed, danger = true, run }) {
  let given = "";
  let isRunning = false;
  let isDone = false;
  /** @type {unknown} */
  let error = null;
  const isReady = () => !isRunning && (typed === undefined || given.trim() === typed);
  const dialog = openDialog(
    title,
    ({ update, close }) => html`
      <form
        method="dialog"
        @submit=${async (/** @type {Event} */ event) => {
          event.preventDefault();
          if (!isReady()) return;
          isRunning = true;
          error = null;
          update();
          try {
            await run();
            isDone = true;
            close();
          } catch (caught) {
            if (!(caught instanceof ApiError) && !(caught instanceof ConnectionLost)) throw caught;
            error = caught;
          } finally {
            isRunning = false;
            update();
          }
        }}
      >
        <div class="dialog-body">${body}</div>
        ${typed === undefined ? "" : typedField(typed, (text) => ((given = text), update()))}
        ${error === null ? "" : problem(error)}
        <div class="buttons">
          <button type="button" class="plain" ?disabled=${isRunning} @click=${close}>Cancel</button>
          <button type="submit" class="${danger ? "danger" : "primary"}" ?disabled=${!isReady()}>
            ${isRunning ? "Working…" : action}
          </button>
        </div>
      </form>
    `,
    { mayClose: () => !isRunning },
  );
  await dialog.closed;
  return isDone;
}

/** @param {string} typed @param {(text: string) => void} change */
export const typedField = (typed, change) => html`
  <label class="field">
    <span>Type <strong>${typed}</strong> to confirm</span>
    <input
      name="typed"
      autofocus
      autocomplete="off"
      autocapitalize="off"
      spellcheck="false"
      @input=${(/** @type {InputEvent} */ event) => change(/** @type {HTMLInputElement} */ (event.target).value)}
    >
  </label>
`;
