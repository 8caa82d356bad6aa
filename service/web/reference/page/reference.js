// Renders openapi.json: the operations, their links, and a form that sends each of them.
// Text from the document becomes text nodes, never markup.
"use strict";

const byId = (id) => document.getElementById(id);
let spec;

// Makes an element; attributes that start with "on" are event handlers.
function make(tag, attributes = {}, ...children) {
  const element = document.createElement(tag);
  for (const [name, value] of Object.entries(attributes)) {
    if (name.startsWith("on")) element.addEventListener(name.slice(2), value);
    else if (value !== false && value !== undefined) element.setAttribute(name, value === true ? "" : value);
  }
  element.append(...children.flat(Infinity).filter(Boolean));
  return element;
}

function resolve(thing) {
  if (!thing?.$ref) return thing;
  return thing.$ref.slice(2).split("/").reduce((found, key) => found[key], spec);
}

// Empty lines separate paragraphs; code is in backticks.
function renderParagraphs(text) {
  return text.split("\n\n").map((paragraph) => make("p", {}, renderCode(paragraph)));
}

function renderCode(text) {
  return text.split("`").map((part, index) => (index % 2 ? make("code", {}, part) : part));
}

// JSON with a span around each key and value, for the colours.
function highlightJson(text) {
  const parts = text.split(/("(?:[^"\\]|\\.)*"|\b(?:true|false|null)\b|-?\d+(?:\.\d+)?(?:[eE][+-]?\d+)?)/);
  return parts.map((part, index) => {
    if (index % 2 === 0) return part;
    const kind = !part.startsWith('"') ? "literal" : /^\s*:/.test(parts[index + 1]) ? "key" : "string";
    return make("span", { class: kind }, part);
  });
}

function makeCodeBlock(label, ...children) {
  return make("pre", { tabindex: 0, role: "group", "aria-label": label }, make("code", {}, children));
}

function makeDetails(summary, content) {
  return make("details", {}, make("summary", {}, summary), content);
}

// The type of a schema: "string", "array of string", "integer".
function describeType(schema) {
  if (schema.type === "array") return `array of ${describeType(schema.items)}`;
  return [schema.type].flat().join(" or ");
}

function describeRange(minimum, maximum, unit = "") {
  if (minimum === undefined) return [];
  // JavaScript does not represent larger limits exactly.
  return [`${minimum} ${maximum <= Number.MAX_SAFE_INTEGER ? `to ${maximum}` : "or more"}${unit}`];
}

// The rules of a schema besides its type.
function renderLimits(schema) {
  const limits = [
    ...describeRange(schema.minimum, schema.maximum),
    ...describeRange(schema.minLength, schema.maxLength, " characters"),
    ...describeRange(schema.minItems, schema.maxItems, " items"),
    schema.uniqueItems && "all different",
    schema.format,
    schema.enum?.join(", "),
    schema.pattern && ["matches ", make("code", {}, schema.pattern)],
  ];
  return limits.filter(Boolean).map((limit) => make("span", { class: "limit" }, limit));
}

function renderField(name, schema, required, place) {
  return make("div", { class: "field" },
    make("dt", {}, make("code", {}, name),
      make("span", { class: "type" }, describeType(schema), place && `, in ${place}`),
      required && make("span", { class: "required" }, "required")),
    make("dd", {}, renderCode(schema.description ?? ""), make("div", { class: "limits" }, renderLimits(schema))));
}

// The fields of an object; nested fields are shown by their path.
function renderFields(schema, prefix = "") {
  return Object.entries(schema.properties).flatMap(([name, reference]) => {
    const field = resolve(reference);
    const inner = resolve(field.items) ?? field;
    if (inner.properties) return renderFields(inner, `${prefix}${name}${field.items ? "[]" : ""}.`);
    return renderField(prefix + name, field, schema.required?.includes(name));
  });
}

function makeStatusBadge(status) {
  return make("span", { class: `status s${String(status)[0]}` }, String(status));
}

function makeMethodBadge(method) {
  return make("span", { class: `method ${method}` }, method.toUpperCase());
}

// One line per status; problems link to their sections. The headers of every response are left out.
function renderResponse(status, response) {
  const problems = Object.entries(response.content?.["application/problem+json"]?.examples ?? {});
  const links = problems.flatMap(([slug, example], index) =>
    [index && ", ", make("a", { href: `#${slug}` }, resolve(example).summary)]);
  const headers = Object.keys(response.headers).filter((name) => !["Cache-Control", "X-Request-Id"].includes(name));
  return make("li", {}, makeStatusBadge(status),
    make("span", {}, links.length ? links : renderCode(response.description),
      headers.map((name, index) => make("span", { class: "with" }, index ? ", " : " with ", make("code", {}, name)))));
}

function renderParameters(operation) {
  const parameters = [...describeToken(operation), ...operation.parameters];
  return make("dl", { class: "fields" }, parameters.map(({ name, description, schema, required, in: place }) =>
    renderField(name, { ...schema, description }, required, place)));
}

// The header for the token as a parameter; none for an operation that ignores it.
function describeToken({ scope, needsToken: required }) {
  if (!scope) return [];
  const description = `\`Bearer\` and a token with the scope \`${scope}\`.` +
    (required ? "" : " This service also allows it without a token.");
  return [{ name: "Authorization", in: "header", required, description, schema: { type: "string" } }];
}

// The token is only in its field; nothing stores it.
function readToken({ scope }) {
  return scope ? byId("token").value.trim() : "";
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
  const { schema, required } = parameter;
  const shared = { id, name: parameter.name, "data-in": parameter.in, required };
  if (schema.enum) {
    const values = required ? schema.enum : ["", ...schema.enum];
    return make("select", shared, values.map((value) => make("option", {}, value)));
  }
  return make("input", { ...shared, value: required ? schema.examples[0] : undefined, autocomplete: "off", spellcheck: "false",
    inputmode: schema.type === "integer" ? "numeric" : undefined });
}

// The request that the form describes: URL, method, headers and body.
function readForm(form, { path, method }) {
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
function formatCurl({ url, method, headers, body }, hasToken) {
  const words = ["curl -i"];
  if (hasToken) words.push('-H "Authorization: Bearer $TOKEN"');
  if (method !== "GET" && !(method === "POST" && body)) words.push(`-X ${method}`);
  for (const [name, value] of Object.entries(headers)) words.push(`-H ${quoteForShell(`${name}: ${value}`)}`);
  if (body !== undefined) words.push(`-d ${quoteForShell(body)}`);
  words.push(quoteForShell(new URL(url, location.href).href));
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
    const isJSON = /[/+]json\b/.test(response.headers.get("Content-Type"));
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
  if (!location) return;
  for (const input of document.querySelectorAll('input[data-in="path"][name="id"]')) setValue(input, location.split("/").pop());
}

function setValue(input, value) {
  input.value = value;
  input.dispatchEvent(new Event("input", { bubbles: true }));
}

function makeBodyControls(name, content) {
  const examples = Object.entries(Object.values(content)[0].examples)
    .map(([what, { value }]) => [what, JSON.stringify(value, null, 2)]);
  const [[, text]] = examples;
  const body = make("textarea", { id: `${name}-body`, name: "body", rows: text.split("\n").length, spellcheck: "false" }, text);
  const choose = make("select", { id: `${name}-example`, onchange: () => setValue(body, examples[choose.selectedIndex][1]) },
    examples.map(([what]) => make("option", {}, what)));
  const kinds = make("select", { id: `${name}-kind`, name: "kind" },
    Object.keys(content).map((kind) => make("option", {}, kind)));
  return [makeLabelled("Body", body), make("div", { class: "pair" },
    examples.length > 1 && makeLabelled("Example", choose), makeLabelled("Content-Type", kinds))];
}

function makeLabelled(text, input, note) {
  return make("div", { class: "control" },
    make("label", { for: input.id }, text, note && make("span", { class: "type" }, ` ${note}`)), input);
}

function makeForm(operation) {
  const { operationId: name, summary, method, parameters, requestBody, scope, needsToken } = operation;
  const output = make("div", { class: "output", "aria-live": "polite" });
  const line = make("code", { id: `${name}-curl` });
  const copy = make("button", { type: "button", class: "copy", hidden: !navigator.clipboard, onclick: async () => {
    await navigator.clipboard.writeText(line.textContent);
    copy.textContent = "Copied";
    setTimeout(() => { copy.textContent = "Copy"; }, 1500);
  } }, "Copy");
  const controls = parameters.map((parameter) =>
    makeLabelled(parameter.name, makeInput(`${name}-parameter-${parameter.name}`, parameter),
      parameter.required ? parameter.in : `${parameter.in}, optional`));
  const refresh = () => {
    line.textContent = formatCurl(readForm(form, operation), needsToken || readToken(operation));
  };
  const form = make("form", { "aria-label": `Try: ${summary}`, oninput: refresh, onsubmit: (event) => {
    event.preventDefault();
    send(readForm(form, operation), readToken(operation), output);
  } }, controls, requestBody && makeBodyControls(name, requestBody.content),
    make("button", { type: "submit", class: "send" }, `Send ${method.toUpperCase()}`));
  refresh();
  const token = [", with ", make("a", { href: "#token" }, "your token"), !needsToken && " if you enter one"];
  return make("div", { class: "panel" },
    make("div", { class: "panel-head" }, make("h4", {}, "curl"), copy),
    make("pre", { tabindex: 0, role: "group", "aria-label": "curl command" }, line),
    make("h4", {}, "Try it"), make("p", { class: "note" }, "Sends a real request to this service", scope && token, "."),
    form, output);
}

function renderOperation(operation) {
  const { operationId: name, summary, path, method, description, requestBody, responses } = operation;
  const sent = requestBody && resolve(Object.values(requestBody.content)[0].schema);
  const status = Object.keys(responses).find((each) => each.startsWith("2"));
  const [[kind, { schema, example }]] = Object.entries(responses[status].content);
  const fields = resolve(schema);
  return make("article", { class: "operation", id: name, "aria-labelledby": `${name}-title` },
    make("header", {},
      make("h3", { id: `${name}-title` }, summary,
        make("a", { class: "anchor", href: `#${name}`, "aria-label": `Link to ${summary}` }, "#")),
      make("p", { class: "route" }, makeMethodBadge(method),
        make("code", {}, path.split(/(\{[^}]+\})/).map((part) =>
          part.startsWith("{") ? make("em", {}, part) : part.replaceAll("/", "/\u200b"))))),
    make("div", { class: "about" },
      renderParagraphs(description),
      make("h4", {}, "Parameters"), renderParameters(operation),
      sent && [make("h4", {}, "Body"), make("dl", { class: "fields" }, renderFields(sent))],
      make("h4", {}, "Responses"),
      make("ul", { class: "responses" }, Object.entries(responses).map(([each, response]) => renderResponse(each, resolve(response)))),
      fields.properties && makeDetails(`Fields of the ${status} response`, make("dl", { class: "fields" }, renderFields(fields))),
      example && makeDetails(`Example of the ${status} response, ${kind}`,
        makeCodeBlock("Example response", highlightJson(JSON.stringify(example, null, 2))))),
    makeForm(operation));
}

// Adds what the functions above need; `scope` is undefined if the operation ignores tokens.
function describeOperation(path, method, operation) {
  const { parameters, security: [way, alternative] } = operation;
  return { ...operation, path, method, parameters: parameters.map(resolve), scope: way?.token[0], needsToken: way && !alternative };
}

function render() {
  byId("version").textContent = `v${spec.info.version}`;
  byId("description").replaceChildren(...renderParagraphs(spec.info.description), makeTokenControl());
  const operations = Object.entries(spec.paths).flatMap(([path, item]) => Object.entries(item)
    .filter(([method]) => !["head", "options"].includes(method)) // see the description
    .map(([method, operation]) => describeOperation(path, method, operation)));
  for (const { name } of spec.tags) {
    const id = `tag-${name.toLowerCase()}`;
    const tagged = operations.filter((operation) => operation.tags.includes(name));
    byId("operation-links").append(make("h2", {}, make("a", { href: `#${id}` }, name)),
      make("ul", {}, tagged.map(({ operationId, method, summary }) => make("li", {},
        make("a", { href: `#${operationId}` }, makeMethodBadge(method), make("span", {}, summary))))));
    byId("operations").append(make("section", { id, "aria-labelledby": `${id}-title` },
      make("h2", { id: `${id}-title` }, name), tagged.map(renderOperation)));
  }
}

// Marks the link of the visible section: the one in the address, else the uppermost.
function markCurrentLink() {
  const links = [...document.querySelectorAll(".contents li a")];
  const mark = () => {
    const visible = links.filter((link) => {
      const { top, bottom } = byId(link.hash.slice(1)).getBoundingClientRect();
      return top < innerHeight * 0.3 && bottom > innerHeight * 0.1;
    });
    const current = visible.find((link) => link.hash === location.hash) ?? visible[0];
    for (const link of links) link.setAttribute("aria-current", String(link === current));
  };
  for (const event of ["scroll", "resize", "hashchange"]) addEventListener(event, mark);
  mark();
}

function setUpMenu() {
  const menu = byId("menu");
  const contents = byId("contents");
  const unfold = (open) => {
    menu.setAttribute("aria-expanded", String(open));
    contents.className = `contents ${open ? "unfolded" : "folded"}`;
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
    byId("failed").textContent = `openapi.json could not be loaded: ${error.message}`;
    byId("failed").hidden = false;
    return;
  }
  markCurrentLink();
  document.documentElement.dataset.rendered = "true";
  // The section in the address did not exist before rendering, or it has moved.
  if (location.hash) byId(decodeURIComponent(location.hash.slice(1)))?.scrollIntoView();
}

start();
