/* The arithmetic of the timeline: where a bucket lies, and what is near the mouse. Pure. */

import type { Preemption, Timeline } from "./contract";

export interface Run {
  start: number;
  length: number;
}

/** Stretches of buckets that are not 0. */
export function runsOf(flags: readonly number[]): Run[] {
  const runs: Run[] = [];
  let start = -1;
  for (let at = 0; at <= flags.length; at++) {
    if (at < flags.length && flags[at]) {
      if (start < 0) start = at;
    } else if (start >= 0) {
      runs.push({ start, length: at - start });
      start = -1;
    }
  }
  return runs;
}

/** What lies at a part (0..1) of the width: the bucket, and the time of that very point. */
export function bucketAt(
  part: number,
  timeline: Pick<Timeline, "until" | "step" | "buckets">,
): { bucket: number; time: number } {
  const inside = Math.min(1, Math.max(0, part));
  const bucket = Math.min(timeline.buckets - 1, Math.floor(inside * timeline.buckets));
  return { bucket, time: timeline.until - (1 - inside) * timeline.buckets * timeline.step };
}

export function nearestPreemption(all: readonly Preemption[], time: number, within: number): Preemption | null {
  let nearest: Preemption | null = null;
  let distance = within;
  for (const preemption of all) {
    const far = Math.abs(preemption.at - time);
    if (far <= distance) [nearest, distance] = [preemption, far];
  }
  return nearest;
}

/** Marks of the axis in seconds ago: round ones, no closer than their text is wide. */
export function axisSeconds(span: number, width: number): number[] {
  const step = [1, 2, 5, 10, 15, 20, 30, 60].find((seconds) => (width * seconds) / span >= 56) ?? span;
  const marks: number[] = [];
  for (let ago = 0; ago <= span + 1e-9; ago += step) marks.push(ago);
  return marks;
}
