// @ts-check
/** One job: when it runs, and the results of its runs. */

import { part, request } from "../core/api.js";
import * as format from "../core/format.js";
import { html, keyed } from "../core/template.js";
import { ago, badge, empty, figure, instant, section, shown, table } from "../parts/bits.js";
import { confirm } from "../parts/dialog.js";
import { notify } from "../parts/notice.js";
import { pager } from "../parts/pager.js";

const LIST = 500;
const PAGE = 50;

/**
 * @typedef {import("../core/types.js").Job} Job
 * @typedef {import("../core/types.js").JobRun} JobRun
 */

export class JobPage {
  static path = "cluster/jobs/:name";
  static title = "Job";

  #view;
  #name;
  /** @type {import("../core/live.js").Watch<{jobs: Job[]}>} */
  #jobs;
  /** @type {import("../core/live.js").Watch<{runs: JobRun[], nextCursor: string | null}>} */
  #runs;

  /** @param {import("../core/view.js").View} view */
  constructor(view) {
    this.#view = view;
    this.#name = view.params.name ?? "";
    this.#jobs = view.watch(() => ({ path: "jobs", query: { limit: LIST } }), 3_000);
    this.#runs = view.watch(
      () => ({ path: `jobs/${part(this.#name)}/runs`, query: { limit: PAGE, cursor: view.value("cursor") } }),
      3_000,
    );
  }

  render() {
    const job = this.#jobs.data?.jobs.find(({ name }) => name === this.#name);
    return html`
      <div class="page-head">
        <h1>Job ${this.#name}</h1>
        ${job === undefined ? "" : jobState(job)}
        <span class="actions">${job !== undefined && this.#view.may("operator") ? jobActions(job, () => this.#reload()) : ""}</span>
      </div>
      ${job === undefined ? "" : facts(job)}
      ${section("Runs", shown(this.#runs, (data) => this.#table(data)), { note: "of the last 7 days, newest first" })}
    `;
  }

  /** @param {{runs: JobRun[], nextCursor: string | null}} data */
  #table({ runs, nextCursor }) {
    if (runs.length === 0) return empty("The job has not run in the last 7 days.", "An instance runs the job when it is due. To run the job now:", `tenure jobs run ${this.#name}`);
    return html`
      ${table(
        "Runs",
        ["Started (UTC)", "Outcome", { label: "Took", className: "number" }, "Instance", { label: "Epoch", className: "optional number" }],
        runs.map((run) =>
          keyed(
            run.epoch,
            html`<tr>
              <th scope="row">${instant(run.startedAt)}</th>
              <td class="${run.error === null ? "" : "wrap"}">${outcome(run)} ${run.error === null ? "" : html`<span class="small">${run.error}</span>`}</td>
              <td class="number">${run.endedAt === null ? "–" : format.duration(Date.parse(run.endedAt) - Date.parse(run.startedAt))}</td>
              <td>${run.holder}</td>
              <td class="optional number">${format.number(run.epoch)}</td>
            </tr>`,
          ),
        ),
      )}
      ${pager(this.#view, this.#runs, nextCursor)}
    `;
  }

  #reload() {
    this.#jobs.reload();
    this.#runs.reload();
  }
}

/** @param {Job} job */
const facts = (job) => html`<dl class="figures">
  ${figure("Last success", ago(job.lastSuccessAt), job.lastSuccessAt === null ? "" : instant(job.lastSuccessAt))}
  ${figure("Next run", job.paused ? "paused" : instant(job.retryAt ?? job.nextRunAt), job.retryAt === null ? `every ${format.duration(job.intervalSeconds * 1000)}` : "a retry", {
    tone: job.paused ? "warn" : "",
  })}
  ${figure("Took", job.lastDurationSeconds === null ? "–" : format.duration(job.lastDurationSeconds * 1000), "the last run")}
  ${figure("Runs", format.number(job.runCount), "in all")}
  ${figure("Failures in a row", format.number(job.failuresInARow), job.lastError ?? "", { tone: job.failuresInARow > 0 ? "bad" : "" })}
</dl>`;

/** @param {JobRun} run */
function outcome({ outcome: found }) {
  if (found === null) return badge("running", "good");
  return badge(found, found === "succeeded" ? "quiet" : found === "failed" ? "bad" : "warn");
}

/** @param {Job} job */
export function jobState(job) {
  if (job.paused) return badge("paused", "warn");
  if (job.failuresInARow === 0) return badge("fine", "good");
  return html`<span title="${job.lastError ?? ""}">${badge(`${format.counted(job.failuresInARow, "failure")} in a row`, "bad")}</span>`;
}

/** Buttons that run, pause and resume a job. @param {Job} job @param {() => void} changed */
export function jobActions(job, changed) {
  const act = (/** @type {string} */ action, /** @type {string} */ said) => async () => {
    await request("POST", `jobs/${part(job.name)}/${action}`);
    notify(said);
  };
  const run = () =>
    confirm({
      title: `Run ${job.name} now?`,
      body: html`<p>An instance starts the job within about a second${job.paused ? ", although it is paused" : ""}.</p>`,
      action: "Run now",
      danger: false,
      run: act("run", `${job.name} starts within about a second.`),
    }).then(changed);
  const pause = () =>
    confirm({
      title: `Pause ${job.name}?`,
      body: html`<p>Until the job is resumed, it runs only on request. A run in progress continues.</p> ${CONSEQUENCES[job.name] ? html`<p class="callout">${CONSEQUENCES[job.name]}</p>` : ""}`,
      action: "Pause",
      run: act("pause", `${job.name} is paused.`),
    }).then(changed);
  const resume = () =>
    confirm({
      title: `Resume ${job.name}?`,
      body: html`<p>The next run covers all runs that were missed during the pause.</p>`,
      action: "Resume",
      danger: false,
      run: act("resume", `${job.name} is resumed.`),
    }).then(changed);
  return html`
    <button type="button" class="plain" aria-label="Run ${job.name} now" @click=${run}>Run</button>
    ${job.paused
      ? html`<button type="button" class="plain" aria-label="Resume ${job.name}" @click=${resume}>Resume</button>`
      : html`<button type="button" class="plain" aria-label="Pause ${job.name}" @click=${pause}>Pause</button>`}
  `;
}

/** The warning that the dialog shows before a job is paused, by the name of the job. @type {Record<string, string>} */
const CONSEQUENCES = {
  "expire-sessions": "Sessions still end at their deadlines, but most of these ends are not recorded until the job runs again.",
  "emit-usage": "No usage is billed until the job runs again. Nothing is lost.",
  "mark-usage": "Sums of usage stay exact. Until the job runs again, sums over long spans take longer, and the sums on the Usage page may leave out the most recent usage.",
  prune: "Old rows are not deleted until the job runs again, and the database grows.",
  watch: "No alert is raised or cleared until the job runs again.",
};
