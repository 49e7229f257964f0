// @ts-check
/**
 * Templates that escape by construction: a value becomes text or the value of an attribute, and never markup.
 *
 *     render(html`<p class="${kind}">${name}</p> <button @click=${end}>End</button>`, container);
 *
 * The literal parts are parsed once. A value is set as a text node, with `setAttribute`, as a property (`.checked`), as
 * a boolean attribute (`?disabled`) or as a listener (`@click`). A list of templates becomes a list of nodes; with
 * `keyed`, a node moves with its key. A second `render` of the same template changes only the values that differ, so
 * focus, selection and scrolling stay as they are.
 *
 * Literal parts must not contain `<` or `>` other than those of tags.
 */

/** A template with its values. */
export class Template {
  /**
   * @param {TemplateStringsArray} strings
   * @param {unknown[]} values
   * @param {boolean} isSvg
   * @param {unknown} [key]
   */
  constructor(strings, values, isSvg, key) {
    this.strings = strings;
    this.values = values;
    this.isSvg = isSvg;
    this.key = key;
  }
}

/** @param {TemplateStringsArray} strings @param {unknown[]} values */
export const html = (strings, ...values) => new Template(strings, values, false);

/** For elements inside `<svg>`. @param {TemplateStringsArray} strings @param {unknown[]} values */
export const svg = (strings, ...values) => new Template(strings, values, true);

/**
 * Give a template in a list a key. When the list changes, the nodes that show this key move to its new place.
 * @param {unknown} key
 * @param {Template} template
 */
export const keyed = (key, template) => new Template(template.strings, template.values, template.isSvg, key);

/** @type {WeakMap<Element | DocumentFragment, Slot>} */
const slots = new WeakMap();

/**
 * Show a value, usually a template, as the content of an element.
 * @param {unknown} value
 * @param {Element} container
 */
export function render(value, container) {
  let slot = slots.get(container);
  if (slot === undefined) {
    container.replaceChildren(document.createComment(""), document.createComment(""));
    slot = new Slot(/** @type {Comment} */ (container.firstChild), /** @type {Comment} */ (container.lastChild));
    slots.set(container, slot);
  }
  const focused = document.activeElement;
  const wasInside = focused instanceof HTMLElement && container.contains(focused);
  slot.set(value);
  // If the element with the focus was removed together with its neighbours, focus the enclosing part of the page.
  if (wasInside && !focused.isConnected && document.activeElement === document.body) {
    /** @type {HTMLElement | null} */ (container.closest("[tabindex]"))?.focus({ preventScroll: true });
  }
}

const MARK = "tenure-value-";
const NAME = /([^\s"'<>=]+)\s*=\s*["']?[^"'<>]*$/;
/** A template must not set these attributes: browsers would treat their values as code, styles or a document. */
const CODE = /^(on|style$|srcdoc$)/i;
const ADDRESS = /^(href|src|action|formaction|xlink:href)$/i;
const CODE_ADDRESS = /^\s*(javascript|data|vbscript):/i;

/**
 * @typedef {{set: (values: unknown[]) => void}} Part
 * @typedef {{node: number, make: (node: Node) => Part}} Place
 * @typedef {{element: HTMLTemplateElement, places: Place[]}} Parsed
 */
/** @type {WeakMap<TemplateStringsArray, Parsed>} */
const parsed = new WeakMap();

/** @param {Template} template @returns {Parsed} */
function parse({ strings, isSvg }) {
  let text = "";
  strings.forEach((string, index) => {
    text += string;
    if (index === strings.length - 1) return;
    const isInTag = text.lastIndexOf("<") > text.lastIndexOf(">");
    const name = isInTag ? (NAME.exec(string)?.[1] ?? "") : "";
    if (CODE.test(name)) throw new Error(`a template must not set ${name}`);
    text += isInTag ? `${MARK}${index};` : `<!--${MARK}${index};-->`;
  });
  const element = document.createElement("template");
  element.innerHTML = isSvg ? `<svg>${text}</svg>` : text;
  if (isSvg) element.content.replaceChildren(...(element.content.firstElementChild?.childNodes ?? []));
  /** @type {Place[]} */
  const places = [];
  each(element.content, (node, number) => {
    if (node instanceof Comment) {
      if (node.data.startsWith(MARK)) places.push({ node: number, make: childPart(numberIn(node.data)) });
      return;
    }
    for (const attribute of [.../** @type {Element} */ (node).attributes]) {
      if (!attribute.value.includes(MARK)) continue;
      const pieces = attribute.value.split(new RegExp(`${MARK}(\\d+);`));
      const first = Number(pieces[1]);
      const name = NAME.exec(strings[first] ?? "")?.[1] ?? attribute.name;
      /** @type {Element} */ (node).removeAttribute(attribute.name);
      places.push({ node: number, make: (target) => attributePart(/** @type {Element} */ (target), name, pieces) });
    }
  });
  return { element, places };
}

/** @param {Node} root @param {(node: Node, number: number) => void} visit */
function each(root, visit) {
  const walker = document.createTreeWalker(root, NodeFilter.SHOW_ELEMENT | NodeFilter.SHOW_COMMENT);
  for (let number = 0; walker.nextNode(); number += 1) visit(walker.currentNode, number);
}

/** @param {string} text */
const numberIn = (text) => Number.parseInt(text.slice(MARK.length), 10);

/** @param {number} index */
const childPart = (index) => (/** @type {Node} */ node) => {
  const start = document.createComment("");
  node.parentNode?.insertBefore(start, node);
  const slot = new Slot(start, /** @type {Comment} */ (node));
  return { set: (/** @type {unknown[]} */ values) => slot.set(values[index]) };
};

/**
 * @param {Element} element
 * @param {string} name
 * @param {string[]} pieces Literal text, number of a value, literal text, and so on.
 * @returns {Part}
 */
function attributePart(element, name, pieces) {
  const indexes = pieces.filter((_, place) => place % 2 === 1).map(Number);
  const only = pieces.length === 3 && pieces[0] === "" && pieces[2] === "" ? indexes[0] : undefined;
  const kind = name.charAt(0);
  const target = /** @type {any} */ (element);
  /** @type {unknown} */
  let last;
  let isSet = false;
  if (kind === "@") {
    element.addEventListener(name.slice(1), (event) => typeof last === "function" && last(event));
    return { set: (values) => (last = values[indexes[0] ?? 0]) };
  }
  return {
    set(values) {
      const value =
        only === undefined
          ? pieces.map((piece, place) => (place % 2 === 1 ? textOf(values[Number(piece)]) : piece)).join("")
          : values[only];
      if (isSet && value === last) return;
      isSet = true;
      last = value;
      if (kind === ".") target[name.slice(1)] = value;
      // Write false as text, because a missing `aria-pressed` does not mean the same as `aria-pressed="false"`.
      else if (typeof value === "boolean" && name.startsWith("aria-")) element.setAttribute(name, String(value));
      else if (kind === "?") element.toggleAttribute(name.slice(1), Boolean(value));
      else if (value === null || value === undefined || value === false) element.removeAttribute(name);
      else if (ADDRESS.test(name) && CODE_ADDRESS.test(String(value))) element.removeAttribute(name);
      else element.setAttribute(name, value === true ? "" : String(value));
    },
  };
}

/** @param {unknown} value */
const textOf = (value) => (value === null || value === undefined || value === false ? "" : String(value));

const FOCUSABLE = "a[href], button:not([disabled]), input:not([disabled]), select:not([disabled]), textarea:not([disabled])";

/** The element with the focus, if it is between two comments. @param {Comment} start @param {Comment} end */
function focusedIn(start, end) {
  const focused = document.activeElement;
  return focused instanceof HTMLElement && focused !== document.body && isBetween(focused, start, end) ? focused : null;
}

/** @param {Node} node @param {Comment} start @param {Comment} end */
function isBetween(node, start, end) {
  const isAfter = start.compareDocumentPosition(node) & Node.DOCUMENT_POSITION_FOLLOWING;
  return Boolean(isAfter && end.compareDocumentPosition(node) & Node.DOCUMENT_POSITION_PRECEDING);
}

/** The content between two comment nodes: text, the nodes of a template, an element, or a list of these. */
class Slot {
  /** @type {{strings: TemplateStringsArray, key: unknown, parts: Part[]} | null} */
  #shown = null;
  /** @type {Text | null} */
  #text = null;
  /** @type {Map<unknown, Slot> | null} */
  #items = null;

  /** @param {Comment} start @param {Comment} end */
  constructor(start, end) {
    this.start = start;
    this.end = end;
  }

  /** @param {unknown} value */
  set(value) {
    if (value instanceof Template) this.#setTemplate(value);
    else if (Array.isArray(value)) this.#setList(value);
    else if (value instanceof Element) this.#setElement(value);
    else this.#setText(textOf(value));
  }

  #clear() {
    for (let node = this.start.nextSibling; node !== null && node !== this.end; node = this.start.nextSibling) {
      node.remove();
    }
    this.#shown = this.#text = this.#items = null;
  }

  /** @param {Template} template */
  #setTemplate(template) {
    if (this.#shown?.strings !== template.strings || this.#shown.key !== template.key) {
      this.#clear();
      let known = parsed.get(template.strings);
      if (known === undefined) parsed.set(template.strings, (known = parse(template)));
      const { element, places } = known;
      const content = document.importNode(element.content, true);
      /** @type {Node[]} */
      const nodes = [];
      each(content, (node) => nodes.push(node));
      const parts = places.map(({ node, make }) => make(/** @type {Node} */ (nodes[node])));
      this.#shown = { strings: template.strings, key: template.key, parts };
      // Set the values before inserting the nodes, so that custom elements have their properties when connected.
      for (const part of parts) part.set(template.values);
      this.end.before(content);
      return;
    }
    for (const part of this.#shown.parts) part.set(template.values);
  }

  /** @param {unknown[]} values */
  #setList(values) {
    if (this.#items === null) this.#clear();
    /** @type {Map<unknown, Slot>} */
    const old = this.#items ?? new Map();
    /** @type {Map<unknown, Slot>} */
    const items = new Map();
    values.forEach((value, index) => {
      const wanted = value instanceof Template && value.key !== undefined ? value.key : index;
      const key = items.has(wanted) ? Symbol("repeated") : wanted;
      items.set(key, old.get(key) ?? new Slot(document.createComment(""), document.createComment("")));
    });
    const focused = focusedIn(this.start, this.end);
    const place = focused === null ? -1 : [...old.values()].findIndex((slot) => isBetween(focused, slot.start, slot.end));
    for (const [key, slot] of old) if (!items.has(key)) slot.#remove();
    let next = /** @type {Comment} */ (this.end);
    [...items.values()].reverse().forEach((slot, place) => {
      if (slot.end.nextSibling !== next) next.before(...slot.#nodes());
      slot.set(values[values.length - 1 - place]);
      next = slot.start;
    });
    this.#items = items;
    if (focused !== null && document.activeElement !== focused) this.#focus(focused, place);
  }

  /**
   * Restore the focus, which a node loses when it is moved or removed. A moved node gets the focus back. For a removed
   * node, the list item that took its place gets the focus.
   * @param {HTMLElement} focused
   * @param {number} place
   */
  #focus(focused, place) {
    const slots = [...(this.#items?.values() ?? [])];
    const nearest = slots[Math.min(place, slots.length - 1)];
    const target = focused.isConnected || nearest === undefined ? focused : nearest.#focusable();
    target?.focus({ preventScroll: true });
  }

  /** @returns {HTMLElement | null} */
  #focusable() {
    for (const node of this.#nodes()) {
      if (!(node instanceof Element)) continue;
      const found = node.matches(FOCUSABLE) ? node : node.querySelector(FOCUSABLE);
      if (found instanceof HTMLElement) return found;
    }
    return null;
  }

  /** @returns {Node[]} */
  #nodes() {
    /** @type {Node[]} */
    const nodes = [this.start];
    for (let node = this.start.nextSibling; node !== null && node !== this.end; node = node.nextSibling) nodes.push(node);
    return [...nodes, this.end];
  }

  #remove() {
    this.#clear();
    this.start.remove();
    this.end.remove();
  }

  /** @param {Element} element */
  #setElement(element) {
    if (this.start.nextSibling === element && element.nextSibling === this.end) return;
    this.#clear();
    this.end.before(element);
  }

  /** @param {string} text */
  #setText(text) {
    if (this.#text === null) {
      this.#clear();
      this.#text = document.createTextNode(text);
      this.end.before(this.#text);
    } else if (this.#text.data !== text) {
      this.#text.data = text;
    }
  }
}
