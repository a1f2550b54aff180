/* A sentence of the server in the page's language; what the translation leaves out, words of others, follows it. */

import type { Message, Refused } from "../contract";
import { useShared } from "../hooks";

export function Sentence({ of }: { of: Message }) {
  const { words } = useShared();
  return <WithDetail text={words.message(of)} detail={words.detail(of)} />;
}

export function Refusal({ of }: { of: Refused }) {
  const { words } = useShared();
  return <WithDetail text={words.refused(of)} detail={words.detail(of)} />;
}

function WithDetail({ text, detail }: { text: string; detail: string | null }) {
  return (
    <span>
      {text}
      {detail !== null && (
        <small class="detail" lang="en">
          {" "}
          {detail}
        </small>
      )}
    </span>
  );
}
