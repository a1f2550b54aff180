/* A sentence of the server in the page's language; what the translation leaves out is its tooltip. */

import type { Message, Refused } from "../contract";
import { useShared } from "../hooks";

export function Sentence({ of }: { of: Message }) {
  const { words } = useShared();
  return <span title={words.detail(of) ?? undefined}>{words.message(of)}</span>;
}

export function Refusal({ of }: { of: Refused }) {
  const { words } = useShared();
  return <span title={words.detail(of) ?? undefined}>{words.refused(of)}</span>;
}
