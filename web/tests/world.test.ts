import { describe, expect, it } from "vitest";

import {
  SERIES,
  type DashboardState,
  type History,
  type Message,
  type Node,
  type Point,
  type Tick,
  type Timeline,
  type Totals,
} from "../src/contract";
import { advance, appended, begin, continued, decode, joinedRow } from "../src/world";

const cordoned: Message = { code: "cordoned", text: "cordoned" };
const b64 = (...bytes: number[]): string => btoa(String.fromCharCode(...bytes));
const totals = { nodes: 2, cards: 3, waiting: 0 } as Totals;

function history(...times: number[]): History {
  return {
    step: 1,
    times,
    series: Object.fromEntries(SERIES.map((name) => [name, times.map(() => 1)])) as unknown as History["series"],
  };
}

function point(time: number, value: number): Point {
  return { time, ...Object.fromEntries(SERIES.map((name) => [name, value])) } as Point;
}

function state(more: Partial<DashboardState> = {}): DashboardState {
  return {
    version: "0",
    kind: "cluster",
    name: "c",
    simulated: null,
    now: 100,
    priority: "binpack",
    leading: true,
    totals,
    kinds: [{ offers: ["qgpu"], policy: "burst-share", model: "A30", cards: 2, memory_mib: 24576 }],
    nodes: { names: ["a", "b"], kind: [0, 0], cards: [2, 1], trouble: { "1": [cordoned] } },
    cards: { memory: b64(10, 20, 30), core: b64(1, 2, 3), class: b64(1, 2, 3) },
    waiting: { count: 0, pods: [] },
    live: null,
    history: history(99),
    ...more,
  };
}

function tick(more: Partial<Tick> = {}): Tick {
  return {
    now: 101,
    totals,
    rows: [],
    cards: { memory: "", core: "", class: "" },
    trouble: null,
    waiting: null,
    point: null,
    live: null,
    ...more,
  };
}

function timeline(until: number, buckets: number, lanes: Record<string, number[]>): Timeline {
  const tenants = Object.entries(lanes).map(([key, shares]) => ({
    key,
    class: "normal" as const,
    shares,
    paused: shares.map(() => 0),
  }));
  return { until, step: 1, buckets, cards: { gpu: { tenants, preemptions: [] } } };
}

const shares = (of: Timeline | null): Record<string, number[]> =>
  Object.fromEntries(of!.cards["gpu"]!.tenants.map((lane) => [lane.key, lane.shares]));

describe("a tick", () => {
  it("changes the cards of the nodes it names, and no others", () => {
    const world = advance(
      begin(state()),
      tick({ rows: [1], cards: { memory: b64(200), core: b64(100), class: b64(6) } }),
    );
    expect([...world.columns.memory]).toEqual([10, 20, 200]);
    expect([...world.columns.core]).toEqual([1, 2, 100]);
    expect([...world.columns.class]).toEqual([1, 2, 6]);
  });

  it("that names nodes in any order puts each where it belongs", () => {
    const world = advance(
      begin(state()),
      tick({ rows: [1, 0], cards: { memory: b64(7, 8, 9), core: b64(7, 8, 9), class: b64(0, 0, 0) } }),
    );
    expect([...world.columns.memory]).toEqual([8, 9, 7]);
  });

  it("that names a node the state has not is an error, not a guess", () => {
    expect(() => advance(begin(state()), tick({ rows: [5] }))).toThrow("node 5");
  });

  it("without troubles or waiting Pods leaves those that are known", () => {
    const known = state({ waiting: { count: 1, pods: [] } });
    const world = advance(begin(known), tick());
    expect(world.state.waiting.count).toBe(1);
    expect(world.state.nodes.trouble).toEqual({ "1": [cordoned] });
  });

  it("may say that all troubles are over", () => {
    expect(advance(begin(state()), tick({ trouble: {} })).state.nodes.trouble).toEqual({});
  });

  it("makes drawings old", () => {
    const world = begin(state());
    expect(advance(world, tick()).revision).toBeGreaterThan(world.revision);
    expect(begin(state(), world).revision).toBeGreaterThan(world.revision);
  });

  it("carries a machine's nodes, whose timelines go on", () => {
    const node = (told: Timeline): Node => ({
      name: "a",
      offers: [],
      policy: "best-effort",
      release_delay_seconds: null,
      trouble: [],
      notes: [],
      cards: [],
      timeline: told,
    });
    const world = begin(state({ live: { nodes: [node(timeline(10, 3, { x: [1, 2, 3] }))] } }));
    const next = advance(world, tick({ live: { nodes: [node(timeline(11, 1, { x: [4] }))] } }));
    expect(shares(next.live.get("a")!.timeline)).toEqual({ x: [2, 3, 4] });
  });
});

describe("the history", () => {
  it("keeps ten minutes", () => {
    const kept = appended(history(0, 300, 500), point(800, 2));
    expect(kept.times).toEqual([300, 500, 800]);
    expect(kept.series.memory).toEqual([1, 1, 2]);
  });

  it("takes no point twice", () => {
    expect(appended(history(500), point(500, 2)).times).toEqual([500]);
  });
});

describe("a timeline that goes on", () => {
  it("moves what is known to the left by the time that passed", () => {
    expect(shares(continued(timeline(10, 4, { x: [1, 2, 3, 4] }), timeline(12, 2, { x: [5, 6] })))).toEqual({
      x: [3, 4, 5, 6],
    });
  });

  it("takes the later word where both speak of one bucket", () => {
    expect(shares(continued(timeline(10, 4, { x: [1, 2, 3, 4] }), timeline(11, 3, { x: [7, 8, 9] })))).toEqual({
      x: [2, 7, 8, 9],
    });
  });

  it("shows a newcomer with nothing before", () => {
    expect(shares(continued(timeline(10, 3, { x: [1, 1, 1] }), timeline(11, 1, { x: [1], y: [5] })))).toEqual({
      x: [1, 1, 1],
      y: [0, 0, 5],
    });
  });

  it("shows one who left until their last bucket is gone, and then no more", () => {
    const left = continued(timeline(10, 3, { x: [0, 0, 9] }), timeline(12, 2, {}));
    expect(shares(left)).toEqual({ x: [9, 0, 0] });
    expect(shares(continued(left, timeline(13, 1, {})))).toEqual({});
  });

  it("leaves nothing of the old after a long silence", () => {
    expect(shares(continued(timeline(10, 3, { x: [1, 2, 3] }), timeline(90, 1, { x: [4] })))).toEqual({ x: [0, 0, 4] });
  });

  it("tells each preemption once, and forgets those older than the window", () => {
    const with_ = (told: Timeline, ...times: number[]): Timeline => {
      told.cards["gpu"]!.preemptions = times.map((at) => ({ at, by: "s", of: "t" }));
      return told;
    };
    const next = continued(
      with_(timeline(10, 4, { x: [1, 1, 1, 1] }), 6.5, 9),
      with_(timeline(11, 3, { x: [1, 1, 1] }), 9, 10.5),
    );
    expect(next!.cards["gpu"]!.preemptions.map((preemption) => preemption.at)).toEqual([9, 10.5]);
  });

  it("counts a preemption once that is told again a few milliseconds off", () => {
    const told = timeline(10, 4, { x: [1, 1, 1, 1] });
    told.cards["gpu"]!.preemptions = [{ at: 9.5, by: "s", of: "t" }];
    const again = timeline(11, 3, { x: [1, 1, 1] });
    again.cards["gpu"]!.preemptions = [{ at: 9.503, by: "s", of: "t" }];
    expect(continued(told, again)!.cards["gpu"]!.preemptions).toEqual(again.cards["gpu"]!.preemptions);
  });

  it("keeps a moment where it was, though the clock trembles", () => {
    let told: Timeline | null = timeline(10.45, 5, { x: [1, 1, 1, 1, 9] });
    for (const until of [11.55, 12.48, 13.52]) told = continued(told, timeline(until, 1, { x: [1] }));
    expect(shares(told)).toEqual({ x: [1, 9, 1, 1, 1] });
  });

  it("has no hole where the clock trembled by more than half a bucket", () => {
    expect(shares(continued(timeline(10, 3, { x: [1, 2, 3] }), timeline(11.6, 1, { x: [4] })))).toEqual({
      x: [2, 3, 4],
    });
  });

  it("fills a row that is shorter than the window from the right", () => {
    expect(joinedRow([1], [2], { moved: 1, buckets: 4, told: 1 })).toEqual([0, 0, 1, 2]);
  });
});

it("bytes survive base64, all of them", () => {
  const all = Array.from({ length: 256 }, (_, value) => value);
  expect([...decode(b64(...all))]).toEqual(all);
});
