// Renders openapi.json: the operations, their links, and a form that sends each of them.
// Text from the document becomes text nodes, never markup.
"use strict";

const METHODS = ["get", "post", "patch", "put", "delete"]; // HEAD and OPTIONS: see the description
let spec;

// Makes an element; attributes that start with "on" are event handlers.
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

// Empty lines separate paragraphs; code is in backticks.
function renderParagraphs(text) {
  return text.split("\n\n").map((paragraph) => make("p", {}, renderCode(paragraph)));
}

function renderCode(text) {
  return text.split("`").map((part, index) => (index % 2 ? make("code", {}, part) : part));
}

// JSON with a span around each key and value, for the colours.
function highlightJson(value) {
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

function makeCodeBlock(label, ...children) {
  return make("pre", { tabindex: 0, role: "group", "aria-label": label }, make("code", {}, children));
}

// The type of a schema: "string", "array of string", "integer".
function describeType(schema) {
  if (schema.type !== "array") return [schema.type ?? "any"].flat().join(" or ");
  return `array of ${describeType(resolve(schema.items ?? {}))}`;
}

function describeRange(minimum, maximum, unit = "") {
  // Omit limits that JavaScript cannot represent exactly.
  const limit = maximum > Number.MAX_SAFE_INTEGER ? undefined : maximum;
  if (minimum === undefined && limit === undefined) return [];
  if (limit === undefined) return [`${minimum} or more${unit}`];
  return [minimum === undefined ? `at most ${limit}${unit}` : `${minimum} to ${limit}${unit}`];
}

// The rules of a schema besides its type.
function renderLimits(schema) {
  const words = [
    ...describeRange(schema.minimum, schema.maximum),
    ...describeRange(schema.minLength, schema.maxLength, " characters"),
    ...describeRange(schema.minItems, schema.maxItems, " items"),
    ...(schema.uniqueItems ? ["all different"] : []),
    ...(schema.format ? [schema.format] : []),
    ...(schema.enum ? [schema.enum.join(", ")] : []),
    ...(schema.pattern ? [["matches ", make("code", {}, schema.pattern)]] : []),
  ];
  return words.map((text) => make("span", { class: "limit" }, text));
}

function renderField(name, schema, required) {
  return make(
    "div",
    { class: "field" },
    make("dt", {}, make("code", {}, name), make("span", { class: "type" }, describeType(schema)),
      required ? make("span", { class: "required" }, "required") : null),
    make("dd", {}, renderCode(schema.description ?? ""), make("div", { class: "limits" }, renderLimits(schema))),
  );
}

// The fields of an object; nested fields are shown by their path.
function renderFields(schema, prefix = "") {
  return Object.entries(schema.properties ?? {}).flatMap(([name, inner]) => {
    const found = resolve(inner);
    const items = found.type === "array" ? resolve(found.items ?? {}) : found;
    const path = prefix + name + (found.type === "array" && items.properties ? "[]" : "");
    const own = (schema.required ?? []).includes(name);
    if (items.properties) return renderFields(items, `${path}.`);
    return [renderField(path, found, own)];
  });
}

function findExample(content) {
  if (!content) return undefined;
  if ("example" in content) return content.example;
  return resolve(Object.values(content.examples ?? {})[0])?.value;
}

function makeStatusBadge(status) {
  return make("span", { class: `status s${String(status)[0]}` }, String(status));
}

function makeMethodBadge(method) {
  return make("span", { class: `method ${method}` }, method.toUpperCase());
}

// The responses of an operation, one line per status; problems link to their sections. The headers of every
// response are left out.
function renderResponses(operation) {
  return Object.entries(operation.responses).map(([status, given]) => {
    const response = resolve(given);
    const problem = response.content?.["application/problem+json"];
    const kinds = Object.keys(problem?.examples ?? {});
    const headers = Object.keys(response.headers ?? {}).filter((name) => !["Cache-Control", "X-Request-Id"].includes(name));
    const links = kinds.flatMap((slug, index) => [
      index ? ", " : "", make("a", { href: `#${slug}` }, resolve(problem.examples[slug]).summary),
    ]);
    return make("li", {}, makeStatusBadge(status),
      make("span", {}, kinds.length ? links : renderCode(response.description),
        headers.map((name, index) =>
          make("span", { class: "with" }, index ? ", " : " with ", make("code", {}, name)))));
  });
}

function renderParameters(operation) {
  const parameters = [...describeToken(operation), ...operation.parameters.map(resolve)];
  return make("dl", { class: "fields" }, parameters.map((parameter) => {
    const schema = { ...parameter.schema, description: parameter.description };
    const row = renderField(parameter.name, schema, parameter.required);
    row.querySelector(".type").append(`, in ${parameter.in}`);
    return row;
  }));
}

// The header for the token as a parameter; none for an operation that ignores it.
function describeToken({ security }) {
  if (!security.length) return [];
  const [scope] = security.flatMap((way) => Object.values(way)[0] ?? []);
  const required = needsToken({ security });
  const description = `\`Bearer\` and a token with the scope \`${scope}\`.` +
    (required ? "" : " This service also allows it without a token.");
  return [{ name: "Authorization", in: "header", required, description, schema: { type: "string" } }];
}

function needsToken({ security }) {
  return security.length > 0 && security.every((way) => Object.keys(way).length);
}

// The token is only in its field; nothing stores it.
function readToken(operation) {
  return operation.security.length ? document.getElementById("token").value.trim() : "";
}

function makeTokenControl() {
  const input = make("input", { id: "token", type: "password", autocomplete: "off", spellcheck: "false", autocapitalize: "off",
    oninput: () => { // the curl commands depend on it
      for (const form of document.querySelectorAll("form")) form.dispatchEvent(new Event("input"));
    } });
  addEventListener("pagehide", () => { input.value = ""; }); // or going back would show this page with it
  return make("div", { class: "token" }, makeLabelled("Token", input),
    make("p", { class: "note" }, "For the requests that you send from this page. It is kept in memory only, until you",
      " reload or leave the page."));
}

function makeInput(id, parameter) {
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

// The request that the form describes: URL, method, headers and body.
function readForm(form, path, method) {
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

function quoteForShell(text) {
  return `'${text.replaceAll("'", "'\\''")}'`;
}

// The command has $TOKEN in place of the token, to keep it off the screen and out of the shell's history.
function formatCurl(request, hasToken) {
  const words = ["curl -i"];
  if (hasToken) words.push('-H "Authorization: Bearer $TOKEN"');
  if (request.method !== "GET" && !(request.method === "POST" && request.body)) words.push(`-X ${request.method}`);
  for (const [name, value] of Object.entries(request.headers)) words.push(`-H ${quoteForShell(`${name}: ${value}`)}`);
  if (request.body !== undefined) words.push(`-d ${quoteForShell(request.body)}`);
  words.push(quoteForShell(new URL(request.url, location.href).href));
  return words.join(" \\\n  ");
}

async function send(request, token, output) {
  output.replaceChildren(make("p", { class: "waiting" }, "Sending…"));
  const started = performance.now();
  try {
    const headers = token ? { ...request.headers, Authorization: `Bearer ${token}` } : request.headers;
    const response = await fetch(request.url, { ...request, headers, cache: "no-store" });
    const text = await response.text();
    const milliseconds = Math.round(performance.now() - started);
    const isJSON = /[/+]json\b/.test(response.headers.get("Content-Type") ?? "");
    output.replaceChildren(
      make("p", { class: "outcome" }, makeStatusBadge(response.status),
        make("strong", {}, response.statusText), make("span", { class: "took" }, `${milliseconds} ms`)),
      make("h5", {}, "Headers"),
      make("dl", { class: "headers" }, [...response.headers].map(([name, value]) =>
        make("div", {}, make("dt", {}, name), make("dd", {}, value)))),
      ...(text ? [make("h5", {}, "Body"), makeCodeBlock("Response body", isJSON ? highlightJson(text) : text)] : []),
    );
    fillInId(response.headers.get("Location"));
  } catch (error) {
    output.replaceChildren(make("p", { class: "failed" }, `No response: ${error.message}`));
  }
}

// After a movie was created, fill its id into the other forms.
function fillInId(location) {
  const id = location?.split("/").pop();
  for (const input of id ? document.querySelectorAll('input[data-in="path"][name="id"]') : []) {
    input.value = id;
    input.dispatchEvent(new Event("input", { bubbles: true }));
  }
}

function makeBodyControls(name, operation) {
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
    makeLabelled("Body", body),
    make("div", { class: "pair" },
      examples.length > 1 ? makeLabelled("Example", choose) : null, makeLabelled("Content-Type", kinds)),
  ];
}

function makeLabelled(text, input, note) {
  return make("div", { class: "control" },
    make("label", { for: input.id }, text, note ? make("span", { class: "type" }, ` ${note}`) : null), input);
}

function makeForm(name, path, method, operation) {
  const output = make("div", { class: "output", "aria-live": "polite" });
  const line = make("code", { id: `${name}-curl` });
  const copy = make("button", { type: "button", class: "copy", hidden: !navigator.clipboard, onclick: async () => {
    await navigator.clipboard.writeText(line.textContent);
    copy.textContent = "Copied";
    setTimeout(() => { copy.textContent = "Copy"; }, 1500);
  } }, "Copy");
  const controls = operation.parameters.map(resolve).map((parameter) =>
    makeLabelled(parameter.name, makeInput(`${name}-parameter-${parameter.name}`, parameter),
      parameter.required ? parameter.in : `${parameter.in}, optional`));
  const form = make("form", { "aria-label": `Try: ${operation.summary}`, oninput: refresh, onsubmit: (event) => {
    event.preventDefault();
    send(readForm(form, path, method), readToken(operation), output);
  } }, controls, makeBodyControls(name, operation),
    make("button", { type: "submit", class: "send" }, `Send ${method.toUpperCase()}`));
  function refresh() {
    const hasToken = needsToken(operation) || readToken(operation) !== "";
    line.textContent = formatCurl(readForm(form, path, method), hasToken);
  }
  refresh();
  return make("div", { class: "panel" },
    make("div", { class: "panel-head" }, make("h4", {}, "curl"), copy),
    make("pre", { tabindex: 0, role: "group", "aria-label": "curl command" }, line),
    make("h4", {}, "Try it"), make("p", { class: "note" }, "Sends a real request to this service",
      operation.security.length ? [", with ", make("a", { href: "#token" }, "your token"), needsToken(operation) ? "" : " if you enter one"] : "", "."),
    form, output);
}

function renderOperation(path, method, operation) {
  const name = operation.operationId;
  const success = Object.entries(operation.responses).find(([status]) => status.startsWith("2"));
  const [kind, content] = Object.entries(resolve(success[1]).content ?? {})[0] ?? [];
  const shown = findExample(content);
  const body = resolve(operation.requestBody);
  const sent = body && resolve(Object.values(body.content)[0].schema);
  const responseSchema = content && resolve(content.schema);
  return make("article", { class: "operation", id: name, "aria-labelledby": `${name}-title` },
    make("header", {},
      make("h3", { id: `${name}-title` }, operation.summary,
        make("a", { class: "anchor", href: `#${name}`, "aria-label": `Link to ${operation.summary}` }, "#")),
      make("p", { class: "route" }, makeMethodBadge(method),
        make("code", {}, path.split(/(\{[^}]+\})/).map((part) =>
          part.startsWith("{") ? make("em", {}, part) : part.replaceAll("/", "/\u200b"))))),
    make("div", { class: "about" },
      renderParagraphs(operation.description),
      make("h4", {}, "Parameters"), renderParameters(operation),
      sent ? [make("h4", {}, "Body"), make("dl", { class: "fields" }, renderFields(sent))] : null,
      make("h4", {}, "Responses"), make("ul", { class: "responses" }, renderResponses(operation)),
      responseSchema?.properties
        ? make("details", {}, make("summary", {}, `Fields of the ${success[0]} response`), make("dl", { class: "fields" }, renderFields(responseSchema)))
        : null,
      shown === undefined ? null
        : make("details", {}, make("summary", {}, `Example of the ${success[0]} response, ${kind}`), makeCodeBlock("Example response", highlightJson(shown)))),
    makeForm(name, path, method, operation));
}

function render() {
  document.getElementById("version").textContent = `v${spec.info.version}`;
  document.getElementById("description").replaceChildren(...renderParagraphs(spec.info.description), makeTokenControl());
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
        make("a", { href: `#${operation.operationId}` }, makeMethodBadge(method),
          make("span", {}, operation.summary))))));
    sections.append(make("section", { id, "aria-labelledby": `${id}-title` },
      make("h2", { id: `${id}-title` }, tag), groups.get(tag).map((each) => renderOperation(...each))));
  }
}

// Marks the link of the visible section: the one in the address, else the uppermost.
function markCurrentLink() {
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

function setUpMenu() {
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
  setUpMenu();
  try {
    spec = await (await fetch("openapi.json")).json();
    render();
  } catch (error) {
    const failed = document.getElementById("failed");
    failed.textContent = `openapi.json could not be loaded: ${error.message}`;
    failed.hidden = false;
    return;
  }
  markCurrentLink();
  document.documentElement.dataset.rendered = "true";
  // The section in the address did not exist before rendering, or it has moved.
  if (location.hash) document.getElementById(decodeURIComponent(location.hash.slice(1)))?.scrollIntoView();
}

start();
