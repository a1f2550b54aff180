/* The page: chooses what to show by the address, by how many cards there are, and by whether the server speaks. */

import { useEffect, useMemo, useRef, useState } from "preact/hooks";

import { SharedContext, useShared } from "./hooks";
import { Link, type Seen } from "./link";
import { go, parseRoute, type Route } from "./route";
import { languageOf, TEXTS, WORDS, type Language, type Text } from "./text";
import { kept, keep } from "./kept";
import { Charts } from "./views/charts";
import { Header, Totals } from "./views/header";
import { Help } from "./views/help";
import { NodePage, NodeView } from "./views/node";
import { Overview } from "./views/overview";
import { Panel } from "./views/panel";
import { Waiting } from "./views/waiting";
import type { World } from "./world";

/** Up to so many cards are shown as cards; more are a map. */
const FEW_CARDS = 24;
const THEMES = ["auto", "light", "dark"];

export function App() {
  const [seen, setSeen] = useState<Seen | null>(null);
  const link = useMemo(() => new Link(setSeen), []);
  const [route, setRoute] = useState<Route>(parseRoute(location.hash));
  const [language, setLanguage] = useState<Language>(languageOf(kept("language"), navigator.languages));
  const [theme, setTheme] = useState(THEMES.find((theme) => theme === kept("theme")) ?? "auto");
  const [help, setHelp] = useState(false);
  const dark = useDark(theme);
  const text = TEXTS[language];

  useEffect(() => link.open(), [link]);
  useEffect(() => {
    const onHash = (): void => setRoute(parseRoute(location.hash));
    addEventListener("hashchange", onHash);
    return () => removeEventListener("hashchange", onHash);
  }, []);
  useEffect(() => {
    document.documentElement.lang = language === "zh" ? "zh-CN" : "en";
  }, [language]);
  const nextTheme = (): void => setTheme(chosen("theme", THEMES[(THEMES.indexOf(theme) + 1) % THEMES.length]!));
  const nextLanguage = (): void => setLanguage(chosen("language", language === "en" ? "zh" : "en"));
  useKeys({
    "/": () => document.getElementById("search")?.focus(),
    "?": () => setHelp(true),
    t: nextTheme,
    l: nextLanguage,
    Escape: back,
  });

  if (seen?.standing.is === "locked") return <Locked text={text} />;
  if (!seen?.world) return <Before text={text} failing={seen?.standing.is === "lost"} />;
  const { world, standing } = seen;
  document.title = titleOf(world, route);
  return (
    <SharedContext.Provider value={{ seen, world, text, words: WORDS[language], theme: dark ? "dark" : "light", retry: () => link.open() }}>
      <div class={standing.is === "live" ? "page" : "page stale"}>
        <Header theme={theme} onTheme={nextTheme} onLanguage={nextLanguage} onHelp={() => setHelp(true)} />
        <main>
          <Totals />
          {route.node !== null ? (
            <NodePage key={route.node} name={route.node} />
          ) : (
            <>
              <Waiting />
              <Everything />
              <Charts />
            </>
          )}
        </main>
        {route.pod !== null && <Panel key={route.pod} name={route.pod} />}
        {help && <Help onClose={() => setHelp(false)} />}
      </div>
    </SharedContext.Provider>
  );
}

function Everything() {
  const { world, text } = useShared();
  const { nodes, totals, kind } = world.state;
  if (totals.cards === 0)
    return (
      <Empty
        lead={kind === "machine" ? text.noCards : text.emptyCluster}
        lines={kind === "machine" ? ["aliquot up --simulate 2x24GiB"] : ["docs/agent.md"]}
      />
    );
  if (totals.cards > FEW_CARDS) return <Overview />;
  const shown = nodes.names.filter((_, row) => nodes.cards[row]! > 0);
  const idle = totals.pods.online + totals.pods.offline + totals.pods.normal + totals.waiting === 0;
  return (
    <>
      {idle && kind === "machine" && (
        <Empty
          lead={text.emptyMachine}
          lines={["aliquot run --memory 10 --core 30 -- python train.py", "aliquot run -f pod.yaml", "aliquot demo"]}
        />
      )}
      {shown.map((name, at) => (
        <NodeView key={name} name={name} alone={shown.length === 1} first={at === 0} />
      ))}
    </>
  );
}

function Empty({ lead, lines }: { lead: string; lines: string[] }) {
  return (
    <section class="box empty">
      <p>{lead}</p>
      {lines.map((line) => (
        <pre key={line}>{line}</pre>
      ))}
    </section>
  );
}

/** Nothing was heard yet. */
function Before({ text, failing }: { text: Text; failing: boolean }) {
  return (
    <main class="before">
      <h1>Aliquot</h1>
      <p role="status">{failing ? text.notAnswered : text.connecting}</p>
    </main>
  );
}

function Locked({ text }: { text: Text }) {
  const [token, setToken] = useState("");
  return (
    <main class="before">
      <h1>{text.needToken}</h1>
      <p>{text.needTokenHow}</p>
      <form
        onSubmit={(event) => {
          event.preventDefault();
          location.assign(`?token=${encodeURIComponent(token.trim())}`);
        }}
      >
        <input
          type="password"
          autocomplete="off"
          aria-label={text.token}
          placeholder={text.token}
          value={token}
          onInput={(event) => setToken(event.currentTarget.value)}
          required
        />
        <button type="submit">{text.open}</button>
      </form>
    </main>
  );
}

/** One step out: the panel first, then the node. */
function back(): void {
  const route = parseRoute(location.hash);
  if (route.pod !== null) go({ pod: null });
  else if (route.node !== null) go({ node: null });
}

function chosen<T extends string>(name: string, value: T): T {
  keep(name, value);
  return value;
}

function titleOf(world: World, route: Route): string {
  return [route.pod ?? route.node, world.state.name, "Aliquot"].filter(Boolean).join(" · ");
}

/** One listener for as long as the page is open: it looks up what a key means now, not what it meant a drawing ago. */
function useKeys(keys: Record<string, () => void>): void {
  const now = useRef(keys);
  now.current = keys;
  useEffect(() => {
    const onKey = (event: KeyboardEvent): void => {
      const typing = event.target instanceof HTMLElement && /^(INPUT|TEXTAREA|SELECT)$/.test(event.target.tagName);
      if (typing || event.ctrlKey || event.metaKey || event.altKey || document.querySelector("dialog[open]")) return;
      const act = now.current[event.key];
      if (!act) return;
      event.preventDefault();
      act();
    };
    addEventListener("keydown", onKey);
    return () => removeEventListener("keydown", onKey);
  }, []);
}

/** The theme is an attribute of the page; "auto" leaves it to the system, which may change while we look. */
function useDark(theme: string): boolean {
  const query = useMemo(() => matchMedia("(prefers-color-scheme: dark)"), []);
  const [system, setSystem] = useState(query.matches);
  useEffect(() => {
    const onChange = (): void => setSystem(query.matches);
    query.addEventListener("change", onChange);
    return () => query.removeEventListener("change", onChange);
  }, [query]);
  if (theme === "auto") delete document.documentElement.dataset["theme"];
  else document.documentElement.dataset["theme"] = theme;
  return theme === "auto" ? system : theme === "dark";
}
