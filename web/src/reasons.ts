/* Waiting Pods by what keeps them. Pure. */

import type { Message, WaitingPod } from "./contract";

export interface Group {
  reason: Message;
  pods: WaitingPod[];
}

/** The most frequent reason first. */
export function byReason(pods: readonly WaitingPod[]): Group[] {
  const groups = new Map<string, Group>();
  for (const pod of pods) {
    const group = groups.get(pod.reason.text);
    if (group) group.pods.push(pod);
    else groups.set(pod.reason.text, { reason: pod.reason, pods: [pod] });
  }
  return [...groups.values()].sort((a, b) => b.pods.length - a.pods.length);
}
