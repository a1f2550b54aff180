import { describe, expect, it } from "vitest";

import type { AppClass, Tenant } from "../src/contract";
import { age, compact, delay, few, grouped, memory, memoryAtMost, memoryOf, percent, shell, shortKey } from "../src/format";
import { stateHint } from "../src/hint";
import { axisSeconds, bucketAt, nearestPreemption, runsOf } from "../src/lanes";
import { waitBefore } from "../src/link";
import { parseRoute, renderRoute } from "../src/route";
import { shadeOf, tenantColour } from "../src/colour";
import { TEXTS } from "../src/text";

describe("figures", () => {
  it.each([
    [128, "128 MiB"],
    [1024, "1 GiB"],
    [24576, "24 GiB"],
    [18_944, "18.5 GiB"],
    [1_048_576, "1,024 GiB"],
    [1_638_400_000, "1,563 TiB"],
  ])("%d MiB is told as %s", (mib, told) => expect(memory(mib)).toBe(told));

  it("is never rounded up where it is what a card has", () => {
    expect(memoryAtMost(3071)).toBe("2.9 GiB");
    expect(memoryAtMost(3072)).toBe("3 GiB");
    expect(memoryAtMost(512)).toBe("512 MiB");
  });

  it("a unit that both have is said once", () => {
    expect(memoryOf(18_432, 24_576)).toEqual(["18", "24 GiB"]);
    expect(memoryOf(64, 24_576)).toEqual(["64 MiB", "24 GiB"]);
  });

  it.each([
    [0, "0s"],
    [119, "119s"],
    [120, "2m"],
    [12_000, "3h 20m"],
    [36_000, "10h"],
    [500_000, "5d"],
    [-3, "0s"],
  ])("%d seconds are %s old", (seconds, told) => expect(age(seconds, TEXTS.en)).toBe(told));

  it("ages have the units of the language", () => {
    expect([age(45, TEXTS.zh), age(12_000, TEXTS.zh), age(500_000, TEXTS.zh)]).toEqual(["45 秒", "3 小时 20 分", "5 天"]);
  });

  it("delays below a second are milliseconds", () => {
    expect([delay(0), delay(0.1), delay(2.5)]).toEqual(["0 s", "100 ms", "2.5 s"]);
  });

  it("thousands are grouped, percents rounded, few have a decimal", () => {
    expect([grouped(1234567), grouped(999), percent(0.128, 1), few(1.75), few(1234)]).toEqual([
      "1,234,567",
      "999",
      "12.8%",
      "1.8",
      "1,234",
    ]);
  });

  it("the edge of a chart has short figures", () => {
    expect([0, 0.5, 50, 2500, 24_000, 1_500_000].map(compact)).toEqual(["0", "0.5", "50", "2,500", "24k", "1.5M"]);
  });

  it("a command can be copied into a shell", () => {
    expect(shell(["python", "-c", "print('a b')"])).toBe(`python -c 'print('\\''a b'\\'')'`);
  });

  it("the namespace default is not said", () => {
    expect([shortKey("default/x"), shortKey("team/x"), shortKey("run")]).toEqual(["x", "team/x", "run"]);
  });
});

describe("the address", () => {
  it.each([
    { node: null, pod: null },
    { node: "node-0", pod: null },
    { node: null, pod: "default/web-0" },
    { node: null, pod: "train" },
    { node: "a.b-c", pod: "ns/x" },
    { node: "100% odd/name", pod: "run with space" },
  ])("keeps $node and $pod", (route) => expect(parseRoute(renderRoute(route))).toEqual(route));

  it("that somebody mangled shows everything", () => {
    expect(parseRoute("#/nod/x")).toEqual({ node: null, pod: null });
    expect(parseRoute("#/node/%E0%A4%A")).toEqual({ node: "%E0%A4%A", pod: null });
  });
});

describe("the timeline", () => {
  const line = { until: 100, step: 0.1, buckets: 600 };

  it("ends at the right with the youngest bucket", () => {
    expect(bucketAt(0, line)).toEqual({ bucket: 0, time: 40 });
    expect(bucketAt(1, line)).toEqual({ bucket: 599, time: 100 });
    expect(bucketAt(2, line).bucket).toBe(599);
  });

  it("draws pauses as stretches", () => {
    expect(runsOf([0, 1, 1, 0, 1])).toEqual([
      { start: 1, length: 2 },
      { start: 4, length: 1 },
    ]);
    expect(runsOf([])).toEqual([]);
  });

  it("shows the nearest preemption, if it is near", () => {
    const all = [10, 12, 20].map((at) => ({ at, by: "a", of: "b" }));
    expect(nearestPreemption(all, 11.5, 1)?.at).toBe(12);
    expect(nearestPreemption(all, 16, 1)).toBeNull();
  });

  it("has marks that do not touch", () => {
    expect(axisSeconds(60, 600)).toEqual([0, 10, 20, 30, 40, 50, 60]);
    expect(axisSeconds(60, 200)).toEqual([0, 20, 40, 60]);
  });
});

it("a broken line is tried again with growing patience, never more than 20 seconds", () => {
  expect([0, 1, 2].map((attempt) => waitBefore(attempt, 0.5))).toEqual([1000, 2000, 4000]);
  expect(waitBefore(50, 1)).toBeLessThan(20_000);
});

it("a tenant keeps its shade, and its neighbour has another", () => {
  const first = shadeOf("a", "online");
  expect(shadeOf("b", "online")).not.toBe(first);
  expect(shadeOf("a", "online")).toBe(first);
});

it("a class that only newer agents know has the colours of normal work", () => {
  expect(tenantColour("a", "of-a-newer-release" as AppClass)).toMatch(/^var\(--normal-\d\)$/);
});

describe("what is said of a tenant's state", () => {
  const tenant: Tenant = {
    key: "default/train",
    class: "offline",
    dialect: "qgpu",
    memory_mib: 1024,
    memory_used_mib: 512,
    core: 50,
    greedy: false,
    exclusive: false,
    share: 0.5,
    state: "running",
    preemptions: 0,
    paused_seconds: 0,
    paused_by: null,
    where: "resident",
    parked_mib: 0,
    moves: 2,
    why_parked: null,
    latency_seconds: null,
    latency_missed_seconds: 0,
    together: null,
    users: null,
  };

  it.each(["resident", "parked", null] as const)("says how often its memory moved (%s)", (where) => {
    expect(stateHint({ ...tenant, where }, TEXTS.en)).toBe("moved 2 times");
  });
});
