/* What is known of the cluster, and how a tick changes it. Pure: what is told comes in, the next world comes out. */

import {
  SERIES,
  type CardBytes,
  type CardTimeline,
  type DashboardState,
  type History,
  type Lane,
  type Live,
  type Node,
  type Point,
  type Preemption,
  type Tick,
  type Timeline,
} from "./contract";

/** Booked amounts come as one byte: 200 is all of it. */
export const FULL = 200;
export const FREE = 0;
export const WHOLE = 5;
export const OUT = 6;

/** Seconds: times are told in milliseconds. */
const ROUNDED = 0.001;

/** The 10 minutes that a page keeps by itself. */
const KEPT_SECONDS = 600;

export interface Columns {
  memory: Uint8Array;
  core: Uint8Array;
  class: Uint8Array;
}

export interface World {
  state: DashboardState;
  columns: Columns;
  /** The first card of each node in the columns, and one more: where the last ends. */
  first: Uint32Array;
  rowOf: Map<string, number>;
  live: Map<string, Node>;
  /** Grows with each tick, so that drawings know when they are old. */
  revision: number;
}

export function decode(text: string): Uint8Array {
  const raw = atob(text);
  const bytes = new Uint8Array(raw.length);
  for (let at = 0; at < raw.length; at++) bytes[at] = raw.charCodeAt(at);
  return bytes;
}

export function columnsOf(bytes: CardBytes): Columns {
  return { memory: decode(bytes.memory), core: decode(bytes.core), class: decode(bytes.class) };
}

export function firstCards(counts: readonly number[]): Uint32Array {
  const first = new Uint32Array(counts.length + 1);
  counts.forEach((count, row) => (first[row + 1] = first[row]! + count));
  return first;
}

export function begin(state: DashboardState, before: World | null = null): World {
  return {
    state,
    columns: columnsOf(state.cards),
    first: firstCards(state.nodes.cards),
    rowOf: new Map(state.nodes.names.map((name, row) => [name, row])),
    live: merged(new Map(), state.live),
    revision: (before?.revision ?? 0) + 1,
  };
}

/** The columns are changed in place: 40,000 cards are not copied every second. */
export function advance(world: World, tick: Tick): World {
  patch(world.columns, world.first, tick.rows, columnsOf(tick.cards));
  const { state } = world;
  return {
    ...world,
    state: {
      ...state,
      now: tick.now,
      totals: tick.totals,
      waiting: tick.waiting ?? state.waiting,
      nodes: tick.trouble ? { ...state.nodes, trouble: tick.trouble } : state.nodes,
      history: tick.point ? appended(state.history, tick.point) : state.history,
    },
    live: merged(world.live, tick.live),
    revision: world.revision + 1,
  };
}

export function patch(columns: Columns, first: Uint32Array, rows: readonly number[], news: Columns): void {
  let at = 0;
  for (const row of rows) {
    const start = first[row];
    const end = first[row + 1];
    if (start === undefined || end === undefined)
      throw new Error(`a tick speaks of node ${row}, which the state has not`);
    const count = end - start;
    for (const name of ["memory", "core", "class"] as const)
      columns[name].set(news[name].subarray(at, at + count), start);
    at += count;
  }
}

export function appended(history: History, point: Point): History {
  const oldest = point.time - KEPT_SECONDS;
  const last = history.times.at(-1);
  if (last !== undefined && point.time <= last) return history;
  let drop = 0;
  while (drop < history.times.length && history.times[drop]! < oldest) drop++;
  const series = {} as History["series"];
  for (const name of SERIES) series[name] = [...(history.series[name] ?? []).slice(drop), point[name] ?? null];
  return { step: history.step, times: [...history.times.slice(drop), point.time], series };
}

/** Nodes as told now; their timelines go on from what was known. */
function merged(known: Map<string, Node>, live: Live | null): Map<string, Node> {
  if (!live) return known;
  return new Map(
    live.nodes.map((node) => [
      node.name,
      { ...node, timeline: continued(known.get(node.name)?.timeline ?? null, node.timeline) },
    ]),
  );
}

/** A tick's timeline has only the buckets since the last one: the old ones move to the left to make room. */
export function continued(known: Timeline | null, news: Timeline | null): Timeline | null {
  if (!known || !news) return news ?? known;
  const { step, until } = news;
  const buckets = Math.max(known.buckets, news.buckets);
  const moved = movedBy(until - known.until, step, news.buckets);
  if (moved < 0 || step !== known.step) return news;
  const cards: Record<string, CardTimeline> = {};
  for (const uuid of Object.keys(news.cards)) {
    cards[uuid] = joined(known.cards[uuid], news.cards[uuid]!, {
      moved,
      buckets,
      told: news.buckets,
      oldest: until - buckets * step,
      newest: until - news.buckets * step,
    });
  }
  return { until, step, buckets, cards };
}

/** In buckets. Two clocks are behind `until`, so that it trembles: a single bucket that nobody told of is that, no gap. */
function movedBy(seconds: number, step: number, told: number): number {
  const moved = Math.round(seconds / step);
  return moved === told + 1 ? told : moved;
}

interface Window {
  moved: number;
  buckets: number;
  /** So many of them, the youngest, are told anew; who is not named there had nothing. */
  told: number;
  oldest: number;
  /** Where the news begin. */
  newest: number;
}

function joined(known: CardTimeline | undefined, news: CardTimeline, window: Window): CardTimeline {
  const before = new Map(known?.tenants.map((lane) => [lane.key, lane]));
  const after = new Map(news.tenants.map((lane) => [lane.key, lane]));
  const keys = [...new Set([...before.keys(), ...after.keys()])];
  const tenants = keys
    .map((key) => joinedLane(before.get(key), after.get(key), window))
    .filter(
      (lane) =>
        after.has(lane.key) || lane.shares.some((share) => share > 0) || lane.paused.some((paused) => paused > 0),
    );
  // As with the buckets: what the news speak of is told anew. Times are rounded, so that the edge is a matter of taste.
  const told = new Set(news.preemptions.map(named));
  const earlier = (known?.preemptions ?? []).filter(
    (preemption) => preemption.at >= window.oldest && preemption.at < window.newest + ROUNDED && !told.has(named(preemption)),
  );
  return { tenants, preemptions: [...earlier, ...news.preemptions] };
}

function named(preemption: Preemption): string {
  return `${preemption.at} ${preemption.by} ${preemption.of}`;
}

function joinedLane(before: Lane | undefined, after: Lane | undefined, window: Window): Lane {
  const { key, class: kind } = (after ?? before)!;
  return {
    key,
    class: kind,
    shares: joinedRow(before?.shares ?? [], after?.shares ?? [], window),
    paused: joinedRow(before?.paused ?? [], after?.paused ?? [], window),
  };
}

/** Both rows end at the right; `before` is as many buckets older as the window moved. */
export function joinedRow(
  before: readonly number[],
  after: readonly number[],
  window: Pick<Window, "moved" | "buckets" | "told">,
): number[] {
  const row = new Array<number>(window.buckets).fill(0);
  const shift = window.buckets - window.moved - before.length;
  before.forEach((value, at) => at + shift >= 0 && at + shift < window.buckets && (row[at + shift] = value));
  row.fill(0, Math.max(0, window.buckets - window.told));
  const start = window.buckets - after.length;
  after.forEach((value, at) => at + start >= 0 && (row[at + start] = value));
  return row;
}
