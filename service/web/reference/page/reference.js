// Renders openapi.json: the operations, their links, and a form that sends each of them.
// Text from the document only ever becomes text nodes, never markup.
"use strict";

const METHODS = ["get", "post", "patch", "put", "delete"]; // HEAD and OPTIONS: see the description
let spec;

function make(tag, attributes = {}, ...children) {
  const element = document.createElement(tag);
  for (const [name, value] of Object.entries(attributes)) {
    if (name.startsWith("on")) element.addEventListener(name.slice(2), value);
    else if (value === true) element.setAttribute(name, "");
    else if (value !== false && value !== undefined) element.setAttribute(name, value);
  }
  element.append(...children.flat(Infinity).filter((child) => child !== undefined && child !== null));
  return element;
}

function resolve(thing) {
  if (!thing || !thing.$ref) return thing;
  return resolve(thing.$ref.slice(2).split("/").reduce((found, key) => found[key], spec));
}

// Paragraphs apart, code in backticks.
function prose(text) {
  return text.split("\n\n").map((paragraph) => make("p", {}, inline(paragraph)));
}

function inline(text) {
  return text.split("`").map((part, index) => (index % 2 ? make("code", {}, part) : part));
}

// JSON with its parts in colours.
function json(value) {
  const text = typeof value === "string" ? value : JSON.stringify(value, null, 2);
  const token = /("(?:[^"\\]|\\.)*")(\s*:)?|\b(?:true|false|null)\b|-?\d+(?:\.\d+)?(?:[eE][+-]?\d+)?/g;
  const parts = [];
  let end = 0;
  for (const match of text.matchAll(token)) {
    const kind = match[2] ? "key" : match[1] ? "string" : "literal";
    const shown = match[1] ?? match[0];
    parts.push(text.slice(end, match.index), make("span", { class: kind }, shown));
    end = match.index + shown.length;
  }
  return [...parts, text.slice(end)];
}

function block(label, ...children) {
  return make("pre", { tabindex: 0, role: "group", "aria-label": label }, make("code", {}, children));
}

// A schema in words: "string", "array of string", "integer".
function type(schema) {
  if (schema.type !== "array") return [schema.type ?? "any"].flat().join(" or ");
  return `array of ${type(resolve(schema.items ?? {}))}`;
}

function range(least, most, unit = "") {
  // What JavaScript cannot count to says nothing to a reader either.
  const limit = most > Number.MAX_SAFE_INTEGER ? undefined : most;
  if (least === undefined && limit === undefined) return [];
  if (limit === undefined) return [`${least} or more${unit}`];
  return [least === undefined ? `at most ${limit}${unit}` : `${least} to ${limit}${unit}`];
}

// The rules of a schema that its type does not tell.
function limits(schema) {
  const words = [
    ...range(schema.minimum, schema.maximum),
    ...range(schema.minLength, schema.maxLength, " characters"),
    ...range(schema.minItems, schema.maxItems, " items"),
    ...(schema.uniqueItems ? ["all different"] : []),
    ...(schema.format ? [schema.format] : []),
    ...(schema.enum ? [schema.enum.join(", ")] : []),
    ...(schema.pattern ? [["matches ", make("code", {}, schema.pattern)]] : []),
  ];
  return words.map((text) => make("span", { class: "limit" }, text));
}

function field(name, schema, required) {
  return make(
    "div",
    { class: "field" },
    make("dt", {}, make("code", {}, name), make("span", { class: "type" }, type(schema)),
      required ? make("span", { class: "required" }, "required") : null),
    make("dd", {}, inline(schema.description ?? ""), make("div", { class: "limits" }, limits(schema))),
  );
}

// The fields of an object, those inside others by their path.
function fields(schema, prefix = "") {
  return Object.entries(schema.properties ?? {}).flatMap(([name, inner]) => {
    const found = resolve(inner);
    const items = found.type === "array" ? resolve(found.items ?? {}) : found;
    const path = prefix + name + (found.type === "array" && items.properties ? "[]" : "");
    const own = (schema.required ?? []).includes(name);
    if (items.properties) return fields(items, `${path}.`);
    return [field(path, found, own)];
  });
}

function example(content) {
  if (!content) return undefined;
  if ("example" in content) return content.example;
  return resolve(Object.values(content.examples ?? {})[0])?.value;
}

function statusBadge(status) {
  return make("span", { class: `status s${String(status)[0]}` }, String(status));
}

function methodBadge(method) {
  return make("span", { class: `method ${method}` }, method.toUpperCase());
}

// What an operation answers: a line a status; problems lead to their sections.
function answers(operation) {
  return Object.entries(operation.responses).map(([status, given]) => {
    const answer = resolve(given);
    const problem = answer.content?.["application/problem+json"];
    const kinds = Object.keys(problem?.examples ?? {});
    const headers = Object.keys(answer.headers ?? {}).filter((name) => name !== "X-Request-Id");
    const links = kinds.flatMap((slug, index) => [
      index ? ", " : "", make("a", { href: `#${slug}` }, resolve(problem.examples[slug]).summary),
    ]);
    return make("li", {}, statusBadge(status),
      make("span", {}, kinds.length ? links : inline(answer.description),
        headers.map((name) => make("span", { class: "with" }, " with ", make("code", {}, name)))));
  });
}

function parameterList(operation) {
  const parameters = operation.parameters.map(resolve);
  return make("dl", { class: "fields" }, parameters.map((parameter) => {
    const schema = { ...parameter.schema, description: parameter.description };
    const row = field(parameter.name, schema, parameter.required);
    row.querySelector(".type").append(`, in ${parameter.in}`);
    return row;
  }));
}

function control(id, parameter) {
  const { schema } = parameter;
  const shown = { id, name: parameter.name, "data-in": parameter.in, required: parameter.required };
  if (schema.enum) {
    const none = parameter.required ? [] : [make("option", { value: "" }, "")];
    return make("select", shown, none, schema.enum.map((value) => make("option", {}, String(value))));
  }
  const value = parameter.required ? schema.examples?.[0] : undefined;
  const digits = schema.type === "integer" ? "numeric" : undefined;
  return make("input", { ...shown, value, inputmode: digits, autocomplete: "off", spellcheck: "false" });
}

// What the form asks for: a URL, headers and a body.
function request(form, path, method) {
  const query = new URLSearchParams();
  const headers = {};
  let url = path;
  for (const input of form.querySelectorAll("[data-in]")) {
    const value = input.value.trim();
    if (input.dataset.in === "path") url = url.replace(`{${input.name}}`, encodeURIComponent(value));
    else if (value && input.dataset.in === "query") query.append(input.name, value);
    else if (value) headers[input.name] = value;
  }
  const body = form.elements.body?.value;
  if (body !== undefined) headers["Content-Type"] = form.elements.kind.value;
  return { url: url + (query.size ? `?${query}` : ""), method: method.toUpperCase(), headers, body };
}

function quoted(text) {
  return `'${text.replaceAll("'", "'\\''")}'`;
}

function curl(asked) {
  const words = ["curl -i"];
  if (asked.method !== "GET" && !(asked.method === "POST" && asked.body)) words.push(`-X ${asked.method}`);
  for (const [name, value] of Object.entries(asked.headers)) words.push(`-H ${quoted(`${name}: ${value}`)}`);
  if (asked.body !== undefined) words.push(`-d ${quoted(asked.body)}`);
  words.push(quoted(new URL(asked.url, location.href).href));
  return words.join(" \\\n  ");
}

async function send(asked, output) {
  output.replaceChildren(make("p", { class: "waiting" }, "Sending…"));
  const started = performance.now();
  try {
    const answer = await fetch(asked.url, { ...asked, cache: "no-store" });
    const text = await answer.text();
    const milliseconds = Math.round(performance.now() - started);
    const isJSON = /[/+]json\b/.test(answer.headers.get("Content-Type") ?? "");
    output.replaceChildren(
      make("p", { class: "outcome" }, statusBadge(answer.status),
        make("strong", {}, answer.statusText), make("span", { class: "took" }, `${milliseconds} ms`)),
      make("h5", {}, "Headers"),
      make("dl", { class: "headers" }, [...answer.headers].map(([name, value]) =>
        make("div", {}, make("dt", {}, name), make("dd", {}, value)))),
      ...(text ? [make("h5", {}, "Body"), block("Body of the answer", isJSON ? json(text) : text)] : []),
    );
    offer(answer.headers.get("Location"));
  } catch (error) {
    output.replaceChildren(make("p", { class: "failed" }, `No answer: ${error.message}`));
  }
}

// What was just created is what the other forms ask for next.
function offer(location) {
  const id = location?.split("/").pop();
  for (const input of id ? document.querySelectorAll('input[data-in="path"][name="id"]') : []) {
    input.value = id;
    input.dispatchEvent(new Event("input", { bubbles: true }));
  }
}

function bodyControls(name, operation) {
  const content = resolve(operation.requestBody)?.content;
  if (!content) return [];
  const examples = Object.entries(Object.values(content)[0].examples ?? {});
  const text = JSON.stringify(examples[0]?.[1].value ?? {}, null, 2);
  const body = make("textarea", { id: `${name}-body`, name: "body", rows: text.split("\n").length, spellcheck: "false" }, text);
  const choose = make("select", { id: `${name}-example`, onchange: (event) => {
    body.value = JSON.stringify(examples[event.target.selectedIndex][1].value, null, 2);
    body.dispatchEvent(new Event("input", { bubbles: true }));
  } }, examples.map(([what]) => make("option", {}, what)));
  const kinds = make("select", { id: `${name}-kind`, name: "kind" },
    Object.keys(content).map((kind) => make("option", {}, kind)));
  return [
    labelled("Body", body),
    make("div", { class: "pair" },
      examples.length > 1 ? labelled("Example", choose) : null, labelled("Content-Type", kinds)),
  ];
}

function labelled(text, input, note) {
  return make("div", { class: "control" },
    make("label", { for: input.id }, text, note ? make("span", { class: "type" }, ` ${note}`) : null), input);
}

function tryIt(name, path, method, operation) {
  const output = make("div", { class: "output", "aria-live": "polite" });
  const line = make("code", { id: `${name}-curl` });
  const copy = make("button", { type: "button", class: "copy", hidden: !navigator.clipboard, onclick: async () => {
    await navigator.clipboard.writeText(line.textContent);
    copy.textContent = "Copied";
    setTimeout(() => { copy.textContent = "Copy"; }, 1500);
  } }, "Copy");
  const controls = operation.parameters.map(resolve).map((parameter) =>
    labelled(parameter.name, control(`${name}-parameter-${parameter.name}`, parameter),
      parameter.required ? parameter.in : `${parameter.in}, optional`));
  const form = make("form", { "aria-label": `Try: ${operation.summary}`, oninput: refresh, onsubmit: (event) => {
    event.preventDefault();
    send(request(form, path, method), output);
  } }, controls, bodyControls(name, operation),
    make("button", { type: "submit", class: "send" }, `Send ${method.toUpperCase()}`));
  function refresh() { line.textContent = curl(request(form, path, method)); }
  refresh();
  return make("div", { class: "panel" },
    make("div", { class: "panel-head" }, make("h4", {}, "curl"), copy),
    make("pre", { tabindex: 0, role: "group", "aria-label": "curl command" }, line),
    make("h4", {}, "Try it"), make("p", { class: "note" }, "Sends a real request to this very service."),
    form, output);
}

function section(path, method, operation) {
  const name = operation.operationId;
  const success = Object.entries(operation.responses).find(([status]) => status.startsWith("2"));
  const [kind, content] = Object.entries(resolve(success[1]).content ?? {})[0] ?? [];
  const shown = example(content);
  const body = resolve(operation.requestBody);
  const sent = body && resolve(Object.values(body.content)[0].schema);
  const answered = content && resolve(content.schema);
  return make("article", { class: "operation", id: name, "aria-labelledby": `${name}-title` },
    make("header", {},
      make("h3", { id: `${name}-title` }, operation.summary,
        make("a", { class: "anchor", href: `#${name}`, "aria-label": `Link to ${operation.summary}` }, "#")),
      make("p", { class: "route" }, methodBadge(method),
        make("code", {}, path.split(/(\{[^}]+\})/).map((part) =>
          part.startsWith("{") ? make("em", {}, part) : part.replaceAll("/", "/\u200b"))))),
    make("div", { class: "about" },
      prose(operation.description),
      make("h4", {}, "Parameters"), parameterList(operation),
      sent ? [make("h4", {}, "Body"), make("dl", { class: "fields" }, fields(sent))] : null,
      make("h4", {}, "Answers"), make("ul", { class: "answers" }, answers(operation)),
      answered?.properties
        ? make("details", {}, make("summary", {}, `Fields of a ${success[0]}`), make("dl", { class: "fields" }, fields(answered)))
        : null,
      shown === undefined ? null
        : make("details", {}, make("summary", {}, `Example of a ${success[0]}, ${kind}`), block("Example of an answer", json(shown)))),
    tryIt(name, path, method, operation));
}

function render() {
  document.getElementById("version").textContent = `v${spec.info.version}`;
  document.getElementById("description").replaceChildren(...prose(spec.info.description));
  const groups = new Map();
  for (const [path, item] of Object.entries(spec.paths)) {
    for (const method of METHODS.filter((each) => item[each])) {
      const [tag] = item[method].tags;
      groups.set(tag, [...(groups.get(tag) ?? []), [path, method, item[method]]]);
    }
  }
  const names = [...new Set([...(spec.tags ?? []).map((tag) => tag.name), ...groups.keys()])];
  const links = document.getElementById("operation-links");
  const sections = document.getElementById("operations");
  for (const tag of names.filter((each) => groups.has(each))) {
    const id = `tag-${tag.toLowerCase().replaceAll(" ", "-")}`;
    links.append(make("h2", {}, make("a", { href: `#${id}` }, tag)),
      make("ul", {}, groups.get(tag).map(([, method, operation]) => make("li", {},
        make("a", { href: `#${operation.operationId}` }, methodBadge(method),
          make("span", {}, operation.summary))))));
    sections.append(make("section", { id, "aria-labelledby": `${id}-title` },
      make("h2", { id: `${id}-title` }, tag), groups.get(tag).map((each) => section(...each))));
  }
}

// The link of what is being read is marked: what the address points to, or else the uppermost.
function follow() {
  const links = [...document.querySelectorAll(".contents li a")];
  const visible = new Set();
  const mark = () => {
    const shown = links.filter((link) => visible.has(link.hash));
    const current = shown.find((link) => link.hash === location.hash) ?? shown[0];
    for (const link of current ? links : []) {
      if (link === current) link.setAttribute("aria-current", "true");
      else link.removeAttribute("aria-current");
    }
  };
  const seen = new IntersectionObserver((entries) => {
    for (const { target, isIntersecting } of entries) {
      if (isIntersecting) visible.add(`#${target.id}`);
      else visible.delete(`#${target.id}`);
    }
    mark();
  }, { rootMargin: "-10% 0px -70% 0px" });
  for (const target of document.querySelectorAll(".operation, .problem")) seen.observe(target);
  addEventListener("hashchange", mark);
}

function foldContents() {
  const menu = document.getElementById("menu");
  const contents = document.getElementById("contents");
  const unfold = (open) => {
    menu.setAttribute("aria-expanded", String(open));
    contents.classList.toggle("folded", !open);
    contents.classList.toggle("unfolded", open);
  };
  menu.hidden = false;
  unfold(false);
  menu.addEventListener("click", () => unfold(menu.getAttribute("aria-expanded") === "false"));
  contents.addEventListener("click", (event) => { if (event.target.closest("a")) unfold(false); });
  document.addEventListener("keydown", (event) => { if (event.key === "Escape") unfold(false); });
}

async function start() {
  foldContents();
  try {
    spec = await (await fetch("openapi.json")).json();
    render();
  } catch (error) {
    const failed = document.getElementById("failed");
    failed.textContent = `openapi.json could not be shown: ${error.message}`;
    failed.hidden = false;
    return;
  }
  follow();
  document.documentElement.dataset.rendered = "true";
  // What the address points to was not there yet, or has moved.
  if (location.hash) document.getElementById(decodeURIComponent(location.hash.slice(1)))?.scrollIntoView();
}

start();
