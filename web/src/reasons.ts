/* Waiting Pods by what keeps them. Pure. */

import type { WaitingPod } from "./contract";

/** The most frequent reason first. */
export function byReason(pods: readonly WaitingPod[]): [string, WaitingPod[]][] {
  const groups = new Map<string, WaitingPod[]>();
  for (const pod of pods) {
    const group = groups.get(pod.reason);
    if (group) group.push(pod);
    else groups.set(pod.reason, [pod]);
  }
  return [...groups].sort(([, a], [, b]) => b.length - a.length);
}
