/* The address after # keeps the view: #/node/NAME, #/pod/NAMESPACE/NAME, or both, one after the other. */

export interface Route {
  node: string | null;
  pod: string | null;
}

export function parseRoute(hash: string): Route {
  const parts = hash
    .replace(/^#?\/?/, "")
    .split("/")
    .map(decoded);
  const route: Route = { node: null, pod: null };
  if (parts[0] === "node" && parts[1]) {
    route.node = parts[1];
    parts.splice(0, 2);
  }
  if (parts[0] === "pod" && parts[1]) route.pod = parts.slice(1).join("/");
  return route;
}

export function renderRoute(route: Route): string {
  const parts: string[] = [];
  if (route.node !== null) parts.push("node", encodeURIComponent(route.node));
  if (route.pod !== null) parts.push("pod", ...route.pod.split("/").map(encodeURIComponent));
  return `#/${parts.join("/")}`;
}

/** An address that somebody mangled is still an address. */
function decoded(part: string): string {
  try {
    return decodeURIComponent(part);
  } catch {
    return part;
  }
}

export function go(route: Partial<Route>): void {
  location.hash = renderRoute({ ...parseRoute(location.hash), ...route });
}
