// @ts-check
/** The page of the submissions: how many of them are in each state, per gateway, and a list with their last errors. */

import { part, request } from "../core/api.js";
import * as format from "../core/format.js";
import { html, keyed } from "../core/template.js";
import { ago, badge, choice, empty, figure, id, instant, section, shown, table } from "../parts/bits.js";
import { confirm } from "../parts/dialog.js";
import { filterFields } from "../parts/filters.js";
import { notify } from "../parts/notice.js";
import { pager } from "../parts/pager.js";

const PAGE = 50;
/** How many pending submissions are read to find how many of them fail. */
const PENDING = 200;
/** The service retries and cancels matching submissions in batches, and answers only after the last batch. */
const BULK_TIMEOUT_MS = 600_000;
const STATES = /** @type {const} */ (["pending", "failed", "cancelled", "delivered"]);
/** Submissions to this gateway carry usage, which must not be dropped. */
export const USAGES = "usages";

/**
 * @typedef {import("../core/types.js").Submission} Submission
 * @typedef {import("../core/types.js").SubmissionCount} SubmissionCount
 * @typedef {"retry" | "cancel"} Command
 */

export class DeliveriesPage {
  static path = "deliveries";
  static title = "Deliveries";
  static nav = {
    label: "Deliveries",
    order: 50,
    needs: /** @type {import("../core/types.js").Role[]} */ (["reader", "operator"]),
    allTenants: true,
  };

  #view;
  /** @type {import("../core/live.js").Watch<{counts: SubmissionCount[]}>} */
  #counts;
  /** @type {import("../core/live.js").Watch<{submissions: Submission[], nextCursor: string | null}>} */
  #submissions;
  /** The newest pending submissions, to show how many of them fail. @type {import("../core/live.js").Watch<{submissions: Submission[], nextCursor: string | null}>} */
  #pending;

  /** @param {import("../core/view.js").View} view */
  constructor(view) {
    this.#view = view;
    this.#counts = view.watch(() => "submissions/counts", 5_000);
    this.#submissions = view.watch(
      () => ({
        path: "submissions",
        query: { gateway: view.value("gateway"), state: view.value("state"), limit: PAGE, cursor: view.value("cursor") },
      }),
      4_000,
    );
    this.#pending = view.watch(() => ({ path: "submissions", query: { state: "pending", limit: PENDING } }), 5_000);
  }

  render() {
    return html`
      <div class="page-head">
        <h1>Deliveries</h1>
        <span class="actions">${this.#view.may("operator") ? this.#bulkButtons() : ""}</span>
      </div>
      ${this.#figures()} ${this.#gateways()}
      <div class="filters" role="search" aria-label="Filter submissions">
        ${choice(
          "State",
          [{ value: "", label: "All" }, ...STATES.map((each) => ({ value: each, label: sentenceCase(each) }))],
          this.#view.value("state"),
          (state) => this.#filter({ state }),
        )}
        ${filterFields(
          [{ name: "gateway", label: "Gateway", options: this.#gatewayNames() }],
          (name) => this.#view.value(name),
          (changes) => this.#filter(changes),
        )}
      </div>
      ${section("Submissions that match", shown(this.#submissions, (data) => this.#table(data)), { note: "newest first" })}
    `;
  }

  #gatewayNames() {
    const found = new Set((this.#counts.data?.counts ?? []).map(({ gateway }) => gateway));
    if (this.#view.value("gateway") !== "") found.add(this.#view.value("gateway"));
    return [...found].sort();
  }

  /**
   * How many submissions are in one of these states, for one gateway or for all.
   * @param {readonly string[]} states @param {string} [gateway]
   */
  #count(states, gateway = "") {
    const found = (this.#counts.data?.counts ?? []).filter(
      (each) => states.includes(each.state) && (gateway === "" || each.gateway === gateway),
    );
    const count = found.reduce((sum, each) => sum + each.count, 0);
    const isExact = found.every(({ exact }) => exact);
    return { count, isExact, text: format.number(count) + (isExact ? "" : " or more") };
  }

  #figures() {
    if (this.#counts.data === null) return "";
    const pending = this.#pendingFate();
    const tones = { pending: pending.tone, failed: "bad", cancelled: "", delivered: "" };
    const notes = {
      pending: pending.note,
      failed: "no attempt is planned",
      cancelled: "will not be sent",
      delivered: "kept for a while after delivery",
    };
    return html`<dl class="figures">
      ${STATES.map((state) => {
        const { count, text } = this.#count([state]);
        return figure(sentenceCase(state), text, notes[state], {
          href: this.#view.href(`deliveries?state=${state}`),
          tone: count > 0 ? tones[state] : "",
        });
      })}
    </dl>`;
  }

  /** How many of the pending submissions fail, are being sent, or wait. */
  #pendingFate() {
    const data = this.#pending.data;
    if (data === null || data.submissions.length === 0) return { tone: "", note: "wait for their next attempt" };
    const count = (/** @type {(each: Submission) => boolean} */ test) => data.submissions.filter(test).length;
    const failing = count(({ lastError }) => lastError !== null);
    const inProgress = count(({ lastError, nextAttemptAt }) => lastError === null && nextAttemptAt === null);
    const waiting = data.submissions.length - failing - inProgress;
    if (failing === data.submissions.length && data.nextCursor === null) return { tone: "warn", note: "all fail and are retried" };
    const parts = [
      failing > 0 ? `${format.number(failing)} fail and are retried` : "",
      inProgress > 0 ? `${format.number(inProgress)} in progress` : "",
      waiting > 0 ? `${format.number(waiting)} wait for an attempt` : "",
    ].filter((each) => each !== "");
    const of = data.nextCursor === null ? "" : `of the newest ${format.number(data.submissions.length)}: `;
    return { tone: failing > 0 ? "warn" : "", note: of + parts.join(", ") };
  }

  #gateways() {
    const counts = this.#counts.data?.counts ?? [];
    const names = [...new Set(counts.map(({ gateway }) => gateway))].sort();
    if (names.length === 0) return "";
    return section(
      "By gateway",
      table(
        "Submissions by gateway and state",
        ["Gateway", ...STATES.map((state) => ({ label: sentenceCase(state), className: "number" }))],
        names.map((name) =>
          keyed(
            name,
            html`<tr>
              <th scope="row"><a href="${this.#view.href(`deliveries?gateway=${part(name)}`)}">${name}</a></th>
              ${STATES.map((state) => {
                const { count, text } = this.#count([state], name);
                const query = `gateway=${part(name)}&state=${state}`;
                return html`<td class="number">
                  ${count === 0
                    ? html`<span class="faint">0</span>`
                    : html`<a class="${state === "failed" ? "bad-link" : ""}" href="${this.#view.href(`deliveries?${query}`)}">${text}</a>`}
                </td>`;
              })}
            </tr>`,
          ),
        ),
      ),
    );
  }

  /** @param {{submissions: Submission[], nextCursor: string | null}} data */
  #table({ submissions, nextCursor }) {
    if (submissions.length === 0 && this.#view.value("cursor") === "") return this.#nothing();
    return html`
      ${table(
        "Submissions",
        [
          "Submission",
          { label: "Gateway", className: "optional" },
          "State",
          { label: "Attempts", className: "optional number" },
          "Last error",
          { label: "Next attempt", className: "optional" },
          { label: "Submitted", className: "optional" },
        ],
        submissions.map((each) =>
          keyed(
            each.submissionId,
            html`<tr>
              <th scope="row">
                ${id(each.submissionId, { href: this.#view.href(`deliveries/${part(each.submissionId)}`), label: "submission id" })}
              </th>
              <td class="optional">${each.gateway}</td>
              <td>${submissionState(each)}</td>
              <td class="optional number">${format.number(each.attemptCount)}</td>
              <td class="${each.lastError === null ? "" : "wrap"}">${each.lastError ?? html`<span class="faint">–</span>`}</td>
              <td class="optional">${each.nextAttemptAt !== null ? ago(each.nextAttemptAt) : each.state === "pending" ? "in progress" : html`<span class="faint">–</span>`}</td>
              <td class="optional">${instant(each.createdAt)}</td>
            </tr>`,
          ),
        ),
      )}
      ${pager(this.#view, this.#submissions, nextCursor)}
    `;
  }

  #nothing() {
    if (this.#view.value("state") !== "" || this.#view.value("gateway") !== "") {
      return empty("No submission matches.", "Delivered submissions are deleted seven days after their delivery.");
    }
    return empty(
      "No submission yet.",
      "Usage is submitted to the gateway usages, alerts to the gateway oncall. Applications submit their own payloads. To list all submissions:",
      "tenure submissions list",
    );
  }

  /** @param {Record<string, string>} changes */
  #filter(changes) {
    this.#view.setQuery({ ...changes, cursor: "" });
    this.#submissions.reload();
  }

  /** The states of the submissions that a command changes if the page is filtered as it is now. @param {Command} command */
  #statesFor(command) {
    const state = this.#view.value("state");
    const possible = command === "retry" ? ["failed", "pending", "cancelled"] : ["pending", "failed"];
    if (state !== "") return possible.includes(state) ? [state] : [];
    return command === "retry" ? ["failed"] : possible;
  }

  #bulkButtons() {
    const gateway = this.#view.value("gateway");
    return /** @type {Command[]} */ (["retry", "cancel"]).map((command) => {
      const states = this.#statesFor(command);
      // Submissions that carry usage are never cancelled.
      const { count, text } = command === "cancel" && gateway === USAGES ? { count: 0, text: "" } : this.#count(states, gateway);
      if (count === 0 || (gateway === "" && this.#view.value("state") === "" && command === "cancel")) return "";
      return html`<button type="button" class="${command === "retry" ? "primary" : "plain quiet-danger"}" @click=${() => this.#bulk(command)}>
        ${sentenceCase(command)} ${text} ${states.join(" and ")}…
      </button>`;
    });
  }

  /** @param {Command} command */
  async #bulk(command) {
    const gateway = this.#view.value("gateway");
    const states = this.#statesFor(command);
    const { count, isExact, text } = this.#count(states, gateway);
    const body = { ...(gateway === "" ? {} : { gateway }), ...(states.length === 1 ? { state: states[0] } : {}) };
    const all = `${text} ${states.join(" and ")} ${count === 1 && isExact ? "submission" : "submissions"}`;
    const to = gateway === "" ? "to all gateways" : html`to gateway <strong>${gateway}</strong>`;
    let changed = 0;
    const isDone = await confirm({
      title: `${sentenceCase(command)} everything that matches?`,
      body:
        command === "retry"
          ? html`<p>Tenure sends ${all} ${to} again now. Each of them gets all its attempts again. Receivers may get many requests at once.</p>`
          : html`<p>Tenure cancels ${all} ${to}: no further attempt is started. Submissions that carry usage do not change.</p>`,
      action: sentenceCase(command),
      danger: command === "cancel",
      typed: isExact ? `${command} ${count}` : command,
      run: async () => {
        ({ count: changed } = await request("POST", `submissions/${command}`, { body, timeoutMs: BULK_TIMEOUT_MS }));
      },
    });
    if (!isDone) return;
    notify(`${format.counted(changed, "submission")} ${command === "retry" ? "will be sent again" : "cancelled"}.`);
    this.#counts.reload();
    this.#submissions.reload();
  }
}

/** @param {string} text */
const sentenceCase = (text) => text.charAt(0).toUpperCase() + text.slice(1);

/** @param {Pick<Submission, "state" | "attemptCount" | "lastError">} submission */
export function submissionState({ state, lastError }) {
  if (state === "failed") return badge("failed", "bad");
  if (state === "pending") return lastError === null ? badge("pending") : badge("pending, fails", "warn");
  return badge(state, state === "delivered" ? "good" : "quiet");
}
