/*
 * A server for working on the pages: serves what vite built and plays the contract with made-up figures.
 *   node mock/serve.mjs machine|idle|cluster|locked [PORT]
 */
import { createServer } from "node:http";
import { readFile } from "node:fs/promises";
import { extname, join } from "node:path";
import { fileURLToPath } from "node:url";
import { Cluster } from "./cluster.mjs";
import { Machine } from "./machine.mjs";

const [what = "machine", port = "5180"] = process.argv.slice(2);
const STATIC = fileURLToPath(new URL("../../src/aliquot/static", import.meta.url));
const TYPES = {
  ".html": "text/html; charset=utf-8",
  ".js": "text/javascript",
  ".css": "text/css",
  ".svg": "image/svg+xml",
};
const CSP = [
  "default-src 'none'",
  "script-src 'self'",
  "style-src 'self'",
  "img-src 'self'",
  "connect-src 'self'",
  "base-uri 'none'",
  "form-action 'none'",
  "frame-ancestors 'none'",
].join("; ");

const played = what === "cluster" ? new Cluster(5000, 8) : new Machine(what === "idle");
const listeners = new Set();

setInterval(
  () => {
    const tick = `event: tick\ndata: ${JSON.stringify(played.tick())}\n\n`;
    for (const each of listeners) each.write(tick);
  },
  what === "cluster" ? 1000 : 500,
);

function answer(path, query) {
  if (path === "state") return played.state();
  if (path === "history") return played.history(query.get("range") === "24h" ? 86400 : 600);
  if (path === "search") return played.search(query.get("q") ?? "", Number(query.get("limit") ?? 50));
  const [, kind, name] = /^(nodes|pods)\/(.+)$/.exec(path) ?? [];
  if (kind === "nodes") return played.node(decodeURIComponent(name));
  if (kind === "pods") return played.pod(decodeURIComponent(name));
  return null;
}

createServer(async (request, response) => {
  const url = new URL(request.url, "http://localhost");
  if (url.pathname.startsWith("/api/v1/")) {
    if (what === "locked") return response.writeHead(401).end();
    const path = url.pathname.slice("/api/v1/".length);
    if (path === "events") {
      response.writeHead(200, { "content-type": "text/event-stream", "cache-control": "no-store" });
      response.write(`event: state\ndata: ${JSON.stringify(played.state())}\n\n`);
      listeners.add(response);
      return request.on("close", () => listeners.delete(response));
    }
    const found = answer(path, url.searchParams);
    return response
      .writeHead(found ? 200 : 404, { "content-type": "application/json" })
      .end(JSON.stringify(found ?? { error: "not there" }));
  }
  const file = url.pathname === "/" ? "/index.html" : url.pathname;
  try {
    const body = await readFile(join(STATIC, file));
    return response
      .writeHead(200, {
        "content-type": TYPES[extname(file)] ?? "application/octet-stream",
        "content-security-policy": CSP,
      })
      .end(body);
  } catch {
    return response.writeHead(404).end();
  }
}).listen(Number(port), "127.0.0.1", () => console.log(`http://127.0.0.1:${port} plays a ${what}`));
