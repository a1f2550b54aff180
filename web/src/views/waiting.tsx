/* Who waits and for what; many with one reason are told as one. */

import { useState } from "preact/hooks";

import type { Message, WaitingPod } from "../contract";
import { age, grouped, shortKey } from "../format";
import { useShared } from "../hooks";
import { byReason } from "../reasons";
import { go } from "../route";
import { dialectName } from "./card";
import { Sentence } from "./sentence";

/** Up to so many are listed one by one. */
const FEW = 8;

export function Waiting() {
  const { world, text } = useShared();
  const { count, pods } = world.state.waiting;
  const unseen = count - pods.length;
  if (count === 0) return null; // the tile above says so
  return (
    <section class="box waiting">
      <div class="head">
        <h2>{text.waitingTitle}</h2>
        <small>{grouped(count)}</small>
      </div>
      {pods.length <= FEW
        ? pods.map((pod) => <Row key={pod.key} pod={pod} reason />)
        : byReason(pods).map((group) => <Group key={group.reason.text} {...group} />)}
      {unseen > 0 && <p class="quiet">{text.moreWaiting(grouped(unseen))}</p>}
    </section>
  );
}

function Group({ reason, pods }: { reason: Message; pods: WaitingPod[] }) {
  const [open, setOpen] = useState(false);
  if (pods.length === 1) return <Row pod={pods[0]!} reason />;
  return (
    <details open={open} onToggle={(event) => setOpen(event.currentTarget.open)}>
      <summary>
        <b>{grouped(pods.length)}</b> <Sentence of={reason} />
      </summary>
      {open && pods.map((pod) => <Row key={pod.key} pod={pod} />)}
    </details>
  );
}

function Row({ pod, reason = false }: { pod: WaitingPod; reason?: boolean }) {
  const { world, text, words } = useShared();
  return (
    <div class="waiter">
      <button type="button" class="link" onClick={() => go({ pod: pod.key })} title={pod.key}>
        <i class={`swatch ${pod.class}`} aria-hidden="true" /> <span>{shortKey(pod.key)}</span>
      </button>
      <small>
        <span class={`c-${pod.class}`}>{text[pod.class]}</span>
        {pod.dialect !== null && ` · ${dialectName(pod.dialect, text)}`} · {text.wants} {words.wants(pod.wants)}
        {pod.since !== null && (
          <>
            {" · "}
            <span class="unbroken">{text.waitsFor(age(world.state.now - pod.since, text))}</span>
          </>
        )}
      </small>
      {reason && (
        <p>
          <Sentence of={pod.reason} />
        </p>
      )}
    </div>
  );
}
