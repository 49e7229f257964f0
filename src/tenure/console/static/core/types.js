// @ts-check
/**
 * Short names for those types of the API's JSON that the console reads. The JavaScript client defines the types.
 *
 * @typedef {import("../../../http/routes/tenure.js").SessionAnswer} Session
 * @typedef {import("../../../http/routes/tenure.js").ActivityAnswer} Activity
 * @typedef {import("../../../http/routes/tenure.js").AlertAnswer} Alert
 * @typedef {import("../../../http/routes/tenure.js").LeaseAnswer} Lease
 * @typedef {import("../../../http/routes/tenure.js").JobAnswer} Job
 * @typedef {import("../../../http/routes/tenure.js").EventAnswer} SessionEvent
 * @typedef {import("../../../http/routes/tenure.js").RunAnswer} JobRun
 * @typedef {import("../../../http/routes/tenure.js").TermAnswer} LeaseTerm
 * @typedef {import("../../../http/routes/tenure.js").ListedSubmission} Submission
 * @typedef {import("../../../http/routes/tenure.js").SubmissionAnswer} SubmissionWithAttempts
 * @typedef {import("../../../http/routes/tenure.js").SubmissionCountAnswer} SubmissionCount
 * @typedef {import("../../../http/routes/tenure.js").AttemptAnswer} Attempt
 * @typedef {import("../../../http/routes/tenure.js").AuditEntryAnswer} AuditEntry
 * @typedef {import("../../../http/routes/tenure.js").KeyAnswer} Key
 * @typedef {import("../../../http/routes/tenure.js").CreatedKeyAnswer} CreatedKey
 * @typedef {import("../../../http/routes/tenure.js").InstanceAnswer} Instance
 *
 * @typedef {import("../../../http/routes/tenure.js").WindowAnswer} UsageWindow
 * @typedef {import("../../../http/routes/tenure.js").CapacityAnswer} Capacity
 * @typedef {import("../../../http/routes/tenure.js").MetricsAnswer} SessionMetrics
 * @typedef {import("../../../http/routes/tenure.js").FactAnswer} Fact
 * @typedef {import("../../../http/routes/tenure.js").Role} Role
 * @typedef {import("../../../http/routes/tenure.js").CallerAnswer} Me
 */

export {};
