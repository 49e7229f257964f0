// @ts-check
/** CSV files (RFC 4180), made and saved by the browser. */

/** @param {(string | number)[][]} rows */
export const csv = (rows) => rows.map((row) => row.map(cell).join(",") + "\r\n").join("");

/** @param {string | number} value */
function cell(value) {
  const text = String(value);
  return /[",\r\n]/.test(text) ? `"${text.replaceAll('"', '""')}"` : text;
}

/** @param {string} name @param {string} content */
export function saveFile(name, content) {
  const url = URL.createObjectURL(new Blob([content], { type: "text/csv;charset=utf-8" }));
  const link = document.createElement("a");
  link.href = url;
  link.download = name;
  link.click();
  URL.revokeObjectURL(url);
}
