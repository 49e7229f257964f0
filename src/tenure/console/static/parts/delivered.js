// @ts-check
/** The note that says until when usage is delivered. */

import { serverNow } from "../core/clock.js";
import * as format from "../core/format.js";
import { html } from "../core/template.js";
import { undelivered } from "../core/windows.js";
import { ago } from "./bits.js";

/**
 * The note of a figure: the instant until which usage is delivered. If all windows of the list are delivered, the note
 * says so, and how long ago the newest window ended. The note is empty if there are no windows.
 * @param {import("../core/windows.js").Window[]} windows Newest first.
 */
export function deliveredUntil(windows) {
  const newest = windows[0];
  if (newest === undefined) return "";
  const oldest = undelivered(windows).at(-1);
  if (oldest === undefined) return html`${ago(newest.endAt)}; all delivered`;
  return `delivered until ${format.shortTime(oldest.startAt, serverNow())}${oldest === windows.at(-1) ? " or earlier" : ""}`;
}
