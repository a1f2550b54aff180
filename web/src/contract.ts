/* What the server says, as it says it. Types, and the one list that code walks over. */

export type Class = "online" | "offline" | "normal";

export interface Totals {
  nodes: number;
  cards: number;
  cards_free: number;
  cards_out: number;
  memory_mib: number;
  memory_booked_mib: number;
  memory_used_mib: number | null;
  core: number;
  core_booked: number;
  busy: number | null;
  fragmentation: number | null;
  pods: { online: number; offline: number; normal: number };
  waiting: number;
  troubled: number;
}

export interface NodeKind {
  offers: string[];
  policy: string;
  model: string;
  cards: number;
  memory_mib: number;
}

export type Trouble = Record<string, string[]>;

/** One byte per card, base64. */
export interface Bytes {
  memory: string;
  core: string;
  class: string;
}

export interface WaitingPod {
  key: string;
  class: Class;
  dialect: string | null;
  since: number | null;
  reason: string;
  wants: string;
}

export interface Waiting {
  count: number;
  pods: WaitingPod[];
}

export const SERIES = ["memory", "core", "busy", "fragmentation", "waiting", "online", "offline", "normal"] as const;
export type Series = (typeof SERIES)[number];

export interface History {
  step: number;
  times: number[];
  series: Record<Series, (number | null)[]>;
}

export type Point = { time: number } & Record<Series, number | null>;

export interface State {
  version: string;
  kind: "machine" | "cluster";
  name: string;
  simulated: string | null;
  now: number;
  priority: string | null;
  leading: boolean | null;
  totals: Totals;
  kinds: NodeKind[];
  nodes: { names: string[]; kind: number[]; cards: number[]; trouble: Trouble };
  cards: Bytes;
  waiting: Waiting;
  live: Live | null;
  history: History;
}

export interface Tick {
  now: number;
  totals: Totals;
  rows: number[];
  cards: Bytes;
  trouble: Trouble | null;
  waiting: Waiting | null;
  point: Point | null;
  live: Live | null;
}

export interface Live {
  nodes: Node[];
}

export interface Node {
  name: string;
  offers: string[];
  policy: string;
  release_delay_seconds: number | null;
  trouble: string[];
  notes: string[];
  cards: Card[];
  timeline: Timeline | null;
}

export interface Card {
  index: number;
  uuid: string;
  model: string;
  healthy: boolean;
  why_out: string | null;
  memory_mib: number;
  memory_booked_mib: number;
  memory_used_mib: number | null;
  core_booked: number;
  greedy_booked: number;
  busy: number | null;
  exclusive: boolean;
  tenants: Tenant[];
}

export interface Tenant {
  key: string;
  class: Class;
  dialect: string;
  memory_mib: number;
  memory_used_mib: number | null;
  core: number | null;
  greedy: boolean;
  exclusive: boolean;
  share: number | null;
  state: "running" | "paused" | "waiting" | "idle" | null;
  preemptions: number | null;
  paused_seconds: number | null;
}

export interface Lane {
  key: string;
  class: Class;
  shares: number[];
  paused: number[];
}

export interface Preemption {
  at: number;
  /** Nobody that is known: the arbiter was told so by the card. */
  by: string | null;
  of: string;
}

export interface CardTimeline {
  tenants: Lane[];
  preemptions: Preemption[];
}

export interface Timeline {
  until: number;
  step: number;
  buckets: number;
  cards: Record<string, CardTimeline>;
}

export interface Pod {
  key: string;
  kind: "pod" | "run";
  class: Class;
  dialect: string | null;
  phase: string;
  node: string | null;
  cards: {
    index: number;
    uuid: string;
    memory_mib: number;
    core: number | null;
    greedy: boolean;
    exclusive: boolean;
  }[];
  containers: { name: string; command: string[] }[];
  owner: string | null;
  since: number | null;
  why: string[];
  /** On a machine there is no example: the reason names the card. */
  refusals: { reason: string; nodes: number; example: string | null }[];
}

export interface Found {
  nodes: string[];
  pods: { key: string; node: string | null; class: Class; phase: string }[];
}
