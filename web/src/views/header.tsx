/* The top: whose figures these are, whether they are alive, and the few big numbers. */

import type { ComponentChildren } from "preact";

import { age, few, grouped, memory, memoryOf, percent, ratio } from "../format";
import { useClock, useShared } from "../hooks";
import { go } from "../route";
import { Search } from "./search";

interface Switches {
  theme: string;
  onTheme: () => void;
  onLanguage: () => void;
  onHelp: () => void;
}

export function Header({ theme, onTheme, onLanguage, onHelp }: Switches) {
  const { world, text } = useShared();
  const { state } = world;
  return (
    <header class="top">
      <a class="brand" href="#/" onClick={() => go({ node: null, pod: null })}>
        <Mark /> Aliquot
      </a>
      <span class="whose">
        <strong>{state.name}</strong>
        <span class="chip">{text[state.kind]}</span>
        {state.simulated !== null && (
          <span class="chip loud" title={text.simulatedHint}>
            {text.simulated(state.simulated)}
          </span>
        )}
        {state.kind === "cluster" && state.priority !== null && (
          <span class="chip" title={text.placingHint}>
            {text.placing}: <b>{state.priority}</b>
          </span>
        )}
        {state.leading === false && (
          <span class="chip" title={text.standbyHint}>
            {text.standby}
          </span>
        )}
      </span>
      <Standing />
      <Search />
      <nav class="switches">
        <button
          type="button"
          onClick={onLanguage}
          title={text.languageHint}
          lang={text.language === "中文" ? "zh" : "en"}
        >
          {text.language}
        </button>
        <button
          type="button"
          onClick={onTheme}
          title={`${text.theme}: ${text.themes[theme]}`}
          aria-label={`${text.theme}: ${text.themes[theme]}`}
        >
          {theme === "dark" ? "☾" : theme === "light" ? "☀" : "◐"}
        </button>
        <button type="button" onClick={onHelp} title={text.help} aria-label={text.help}>
          ?
        </button>
      </nav>
    </header>
  );
}

function Mark() {
  return (
    <svg class="mark" viewBox="0 0 18 18" aria-hidden="true">
      <rect x="0" y="0" width="18" height="5" rx="1" class="m-online" />
      <rect x="0" y="6.5" width="11" height="5" rx="1" class="m-offline" />
      <rect x="0" y="13" width="14" height="5" rx="1" class="m-normal" />
    </svg>
  );
}

function Standing() {
  const { seen, text, retry } = useShared();
  const now = useClock();
  const { standing } = seen;
  if (standing.is === "live") {
    return (
      <span class="standing live" role="status">
        <i /> {text.live}
      </span>
    );
  }
  const old = Math.round((now - seen.heardAt) / 1000);
  return (
    <span class="standing lost" role="status">
      <i /> {text.lost(old)}
      {standing.is === "lost" && (
        <>
          {" · "}
          {text.retrying(Math.max(0, Math.ceil((standing.retryAt - now) / 1000)))}{" "}
          <button type="button" onClick={retry}>
            {text.retryNow}
          </button>
        </>
      )}
    </span>
  );
}

export function Totals() {
  const { world, text } = useShared();
  const { totals, waiting } = world.state;
  const inUse = totals.cards - totals.cards_free - totals.cards_out;
  const [booked, all] = memoryOf(totals.memory_booked_mib, totals.memory_mib);
  const eldest = waiting.pods.reduce((oldest, pod) => Math.min(oldest, pod.since ?? Infinity), Infinity);
  return (
    <dl class="totals">
      <Figure
        name={text.cardsInUse}
        value={grouped(inUse)}
        unit={`/ ${grouped(totals.cards)}`}
        level={ratio(inUse, totals.cards)}
      >
        {text.free(grouped(totals.cards_free))}
        {totals.cards_out > 0 && <b class="bad"> · {text.out(grouped(totals.cards_out))}</b>}
      </Figure>
      <Figure
        name={text.memoryBooked}
        measure="memory"
        value={percent(ratio(totals.memory_booked_mib, totals.memory_mib))}
        level={ratio(totals.memory_booked_mib, totals.memory_mib)}
      >
        {booked} / {all}
        {totals.memory_used_mib !== null && ` · ${text.memoryUsed(memory(totals.memory_used_mib))}`}
      </Figure>
      <Figure
        name={text.computeBooked}
        measure="compute"
        value={percent(ratio(totals.core_booked, totals.core))}
        level={ratio(totals.core_booked, totals.core)}
      >
        {few(totals.core_booked / 100)} / {text.cards(grouped(totals.core / 100))}
      </Figure>
      {totals.busy !== null && <Figure name={text.busyNow} measure="busy" value={percent(totals.busy)} level={totals.busy} />}
      <Figure name={text.pods} value={grouped(totals.pods.online + totals.pods.offline + totals.pods.normal)} broad>
        {(["online", "offline", "normal"] as const).map((name) => (
          <span class="count" key={name}>
            <b class={`c-${name}`}>{grouped(totals.pods[name])}</b> {text[name]}
          </span>
        ))}
      </Figure>
      <Figure name={text.waiting} value={grouped(totals.waiting)} tone={totals.waiting > 0 ? "waiting" : undefined}>
        {eldest < Infinity && text.waitsFor(age(world.state.now - eldest, text))}
      </Figure>
      {totals.fragmentation !== null && (
        <Figure
          name={text.fragmentation}
          measure="fragmentation"
          value={percent(totals.fragmentation, 1)}
          hint={text.fragmentationHint}
          level={totals.fragmentation}
        />
      )}
      {totals.troubled > 0 && <Figure name={text.troubled} value={grouped(totals.troubled)} tone="bad" />}
    </dl>
  );
}

interface FigureProps {
  name: string;
  value: string;
  unit?: string;
  hint?: string;
  level?: number;
  /** Whose colour the level has. */
  measure?: string;
  /** The colour of the number. */
  tone?: "waiting" | "bad" | undefined;
  broad?: boolean;
  children?: ComponentChildren;
}

function Figure({ name, value, unit, hint, level, measure = "cards", tone, broad, children }: FigureProps) {
  return (
    <div class={["figure", tone, broad && "broad"].filter(Boolean).join(" ")} title={hint}>
      <dt>{name}</dt>
      <dd>
        <span class="big">{value}</span>
        {unit && <span class="unit"> {unit}</span>}
        {level !== undefined && (
          <span class="level" aria-hidden="true">
            <i class={`m-${measure}`} style={{ width: `${Math.min(100, level * 100)}%` }} />
          </span>
        )}
        <small>{children}</small>
      </dd>
    </div>
  );
}
