// @ts-check
/** The installation: its instances, who leads and has led, and its jobs. */

import { part, request } from "../core/api.js";
import { serverNow } from "../core/clock.js";
import * as format from "../core/format.js";
import { html, keyed } from "../core/template.js";
import { ago, badge, choice, empty, figure, instant, isSilent, section, shown, table } from "../parts/bits.js";
import "../parts/charts/leaders.js";
import { confirm } from "../parts/dialog.js";
import { jobActions, jobState } from "./job.js";
import { notify } from "../parts/notice.js";

const LIST = 500;
const JOB_LOCK = "job:";
const SPANS = [
  { value: "1h", label: "1 h", ms: 3_600_000 },
  { value: "6h", label: "6 h", ms: 21_600_000 },
  { value: "24h", label: "24 h", ms: 86_400_000 },
  { value: "7d", label: "7 d", ms: 604_800_000 },
];
const HOUR = "1h";

/**
 * @typedef {import("../core/types.js").Lease} Lease
 * @typedef {import("../core/types.js").Job} Job
 * @typedef {import("../core/types.js").Instance} Instance
 * @typedef {import("../core/types.js").LeaseTerm} LeaseTerm
 */
/** @template T @typedef {import("../core/live.js").Watch<T>} Watch */

export class ClusterPage {
  static path = "cluster";
  static title = "Cluster";
  static nav = {
    label: "Cluster",
    order: 60,
    needs: /** @type {import("../core/types.js").Role[]} */ (["reader", "operator"]),
    allTenants: true,
  };

  #view;
  /** @type {Watch<{instances: Instance[], nextCursor: string | null}>} */
  #instances;
  /** @type {Watch<{leases: Lease[]}>} */
  #leases;
  /** @type {Watch<{jobs: Job[]}>} */
  #jobs;
  /** @type {Watch<{terms: LeaseTerm[], nextCursor: string | null}>} */
  #terms;

  /** @param {import("../core/view.js").View} view */
  constructor(view) {
    this.#view = view;
    this.#leases = view.watch(() => ({ path: "leases", query: { limit: LIST } }), 3_000);
    this.#instances = view.watch(() => ({ path: "instances", query: { limit: LIST } }), 5_000);
    this.#jobs = view.watch(() => ({ path: "jobs", query: { limit: LIST } }), 4_000);
    this.#terms = view.watch(
      () => ({ path: "leases/history", query: { from: new Date(serverNow() - this.#span().ms).toISOString(), limit: LIST } }),
      10_000,
    );
  }

  #span() {
    const chosen = this.#view.value("span", HOUR);
    return SPANS.find(({ value }) => value === chosen) ?? /** @type {{value: string, label: string, ms: number}} */ (SPANS[0]);
  }

  render() {
    return html`
      <div class="page-head"><h1>Cluster</h1></div>
      ${this.#figures()} ${this.#leaseList()} ${this.#timeline()} ${this.#jobList()} ${this.#instanceList()}
    `;
  }

  #figures() {
    const instances = this.#instances.data?.instances;
    const leading = (this.#leases.data?.leases ?? []).filter(({ name }) => !name.startsWith(JOB_LOCK));
    const vacant = leading.filter(({ held }) => !held);
    const jobs = this.#jobs.data?.jobs;
    const failing = (jobs ?? []).filter(({ failuresInARow }) => failuresInARow > 0);
    const paused = (jobs ?? []).filter((job) => job.paused);
    const alive = (instances ?? []).filter((each) => each.alive);
    const lost = (instances ?? []).filter((each) => !each.alive && each.stoppedAt === null);
    const versions = [...new Set(alive.map(({ version }) => version))];
    const first = leading[0];
    return html`<dl class="figures">
      ${figure("Instances", instances ? format.number(alive.length) : "–", lost.length > 0 ? `${format.number(lost.length)} died in the last day` : "running", {
        tone: instances && alive.length === 0 ? "bad" : lost.length > 0 ? "warn" : "",
      })}
      ${figure("Version", versions.length === 1 ? versions[0] : versions.length === 0 ? "–" : format.number(versions.length), versions.length > 1 ? versions.join(", ") : "on every instance", {
        tone: versions.length > 1 ? "warn" : "",
      })}
      ${first === undefined
        ? figure("Leader since", "–", this.#leases.data ? "no lease was held yet" : "")
        : figure("Leader since", first.held ? ago(first.acquiredAt) : "no leader", first.held ? html`<strong>${first.holder}</strong>, ${first.name}, epoch ${format.number(first.epoch)}` : `${first.name} was held by ${first.holder}`, {
            tone: vacant.length > 0 ? "bad" : "",
          })}
      ${figure("Jobs that fail", jobs ? format.number(failing.length) : "–", paused.length > 0 ? `${format.number(paused.length)} paused` : jobs ? `of ${format.number(jobs.length)}` : "", {
        tone: failing.length > 0 ? "bad" : paused.length > 0 ? "warn" : "",
      })}
    </dl>`;
  }

  #leaseList() {
    return section(
      "Who leads",
      shown(this.#leases, ({ leases }) => {
        const leading = leases.filter(({ name }) => !name.startsWith(JOB_LOCK));
        if (leading.length === 0) return empty("No instance has led yet.", "The first instance that is ready acquires the lease within seconds:", "tenure serve");
        const mayResign = this.#view.may("operator");
        return table(
          "Leases",
          ["Lease", "Leader", { label: "Epoch", className: "number optional" }, "Since", { label: "Renewed", className: "optional" }, ...(mayResign ? [html`<span class="off-screen">Actions</span>`] : [])],
          leading.map((lease) => keyed(lease.name, this.#lease(lease, mayResign))),
        );
      }),
    );
  }

  /** @param {Lease} lease @param {boolean} mayResign */
  #lease(lease, mayResign) {
    return html`<tr>
      <th scope="row">${lease.name}</th>
      <td>${lease.held ? lease.holder : html`${badge("not held", "bad")} <span class="faint">was ${lease.holder}</span>`}</td>
      <td class="number optional">${format.number(lease.epoch)}</td>
      <td>${lease.held ? html`${instant(lease.acquiredAt)} <span class="faint">${ago(lease.acquiredAt)}</span>` : "–"}</td>
      <td class="optional">${isSilent(lease) ? badge("silent", "warn") : ""} ${ago(lease.renewedAt)}</td>
      ${mayResign
        ? html`<td class="row-actions">
            ${lease.held ? html`<button type="button" class="plain" aria-label="Resign ${lease.name}" @click=${() => this.#resign(lease)}>Resign</button>` : ""}
          </td>`
        : ""}
    </tr>`;
  }

  #timeline() {
    const now = serverNow();
    const span = this.#span();
    return section(
      "Leaders over time",
      shown(this.#terms, ({ terms, nextCursor }) => {
        if (terms.length === 0) return empty("No lease was held in this span.", "Choose a longer span.");
        return html`<tenure-leaders .from=${now - span.ms} .to=${now} .rows=${rowsOf(terms)}></tenure-leaders>
          ${nextCursor === null ? "" : html`<p class="note">Only the last ${format.number(terms.length)} terms are shown. Choose a shorter span to see all.</p>`}
          <details class="values">
            <summary>Terms as a table</summary>
            ${table(
              "Terms, newest first",
              ["Lease", "Leader", { label: "Epoch", className: "number" }, "From (UTC)", "To (UTC)", "End"],
              terms.map(
                (term) => html`<tr>
                  <th scope="row">${term.name}</th>
                  <td>${term.holder}</td>
                  <td class="number">${format.number(term.epoch)}</td>
                  <td>${format.dateTime(term.acquiredAt)}</td>
                  <td>${term.endedAt === null ? "now" : format.dateTime(term.endedAt)}</td>
                  <td>${term.how ?? "–"}</td>
                </tr>`,
              ),
            )}
          </details>`;
      }),
      {
        actions: choice("Span", SPANS, span.value, (value) => {
          this.#view.setQuery({ span: value === HOUR ? "" : value }, { replace: true });
          this.#terms.reload();
        }),
      },
    );
  }

  #jobList() {
    const mayChange = this.#view.may("operator");
    return section(
      "Jobs",
      shown(this.#jobs, ({ jobs }) =>
        table(
          "Jobs",
          [
            "Job",
            "State",
            { label: "Every", className: "optional number" },
            "Last success",
            { label: "Took", className: "optional number" },
            { label: "Next run", className: "optional" },
            ...(mayChange ? [{ label: html`<span class="off-screen">Actions</span>`, className: "optional" }] : []),
          ],
          jobs.map((job) =>
            keyed(
              job.name,
              html`<tr>
                <th scope="row"><a href="${this.#view.href(`cluster/jobs/${part(job.name)}`)}">${job.name}</a></th>
                <td class="${job.lastError === null ? "" : "wrap"}">
                  ${jobState(job)} ${this.#runner(job)}
                  ${job.lastError === null ? "" : html`<span class="small">${job.lastError}</span>`}
                </td>
                <td class="optional number">${format.duration(job.intervalSeconds * 1000)}</td>
                <td>${ago(job.lastSuccessAt)}</td>
                <td class="optional number">${job.lastDurationSeconds === null ? "–" : format.duration(job.lastDurationSeconds * 1000)}</td>
                <td class="optional">${job.paused ? html`<span class="faint">–</span>` : instant(job.retryAt ?? job.nextRunAt)}</td>
                ${mayChange ? html`<td class="row-actions optional">${jobActions(job, () => this.#jobs.reload())}</td>` : ""}
              </tr>`,
            ),
          ),
        ),
      ),
    );
  }

  /** A badge if an instance runs the job at this moment. The tooltip names the instance. @param {Job} job */
  #runner(job) {
    const lock = this.#leases.data?.leases.find(({ name, held }) => held && name === JOB_LOCK + job.name);
    return lock === undefined ? "" : html`<span title="${lock.holder}">${badge("running")}</span>`;
  }

  #instanceList() {
    return section(
      "Instances",
      shown(this.#instances, ({ instances, nextCursor }) => {
        if (instances.length === 0) return empty("No instance is recorded yet.", "Each instance records itself when it starts.");
        const ordered = [...instances].sort((one, other) => Number(other.alive) - Number(one.alive) || (one.lastSeenAt < other.lastSeenAt ? 1 : -1));
        return html`${table(
            "Instances",
            ["Instance", "State", "Leads", "Version", { label: "Worker", className: "optional number" }, { label: "Started", className: "optional" }, "Last seen"],
            ordered.map((each) =>
              keyed(
                each.instance,
                html`<tr>
                  <th scope="row" title="${each.host}, process ${each.pid}">${each.instance}</th>
                  <td>${instanceState(each)}</td>
                  <td>${each.leads.length === 0 ? html`<span class="faint">–</span>` : each.leads.join(", ")}</td>
                  <td>${each.version}</td>
                  <td class="optional number">${format.number(each.worker)}</td>
                  <td class="optional">${instant(each.startedAt)}</td>
                  <td>${ago(each.lastSeenAt)}</td>
                </tr>`,
              ),
            ),
          )}
          ${nextCursor === null ? "" : html`<p class="note">There are more instances than the ${format.number(LIST)} shown.</p>`}`;
      }),
      { note: "including those that stopped or died in the last day" },
    );
  }

  /** @param {Lease} lease */
  async #resign(lease) {
    await confirm({
      title: `End the lease ${lease.name}?`,
      body: html`<p>${lease.holder} stops leading within about a second. Then another instance takes over, or the same instance if there is no other.</p>`,
      action: "Resign",
      run: async () => {
        await request("POST", `leases/${part(lease.name)}/resign`);
        notify(`The lease ${lease.name} has ended.`);
      },
    });
    this.#leases.reload();
  }
}

/** @param {Instance} instance */
function instanceState({ alive, stoppedAt }) {
  if (alive) return badge("running", "good");
  return stoppedAt === null ? badge("died", "bad") : html`${badge("stopped")} <span class="faint">${ago(stoppedAt)}</span>`;
}

/** @param {LeaseTerm[]} terms */
function rowsOf(terms) {
  /** @type {Map<string, {holder: string, from: string, to: string | null, epoch: number, how: string | null}[]>} */
  const rows = new Map();
  for (const { name, holder, acquiredAt, endedAt, epoch, how } of terms) {
    if (!rows.has(name)) rows.set(name, []);
    rows.get(name)?.unshift({ holder, from: acquiredAt, to: endedAt, epoch, how });
  }
  return [...rows].sort(([one], [other]) => (one < other ? -1 : 1)).map(([name, found]) => ({ name, terms: found }));
}
