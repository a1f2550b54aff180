/* A node: its rules, its cards as bars, and who held them in the last minute. */

import type { Node } from "../contract";
import { delay } from "../format";
import { columnsFor } from "../grid";
import { useAsked, useShared, useWidth } from "../hooks";
import type { Answer } from "../link";
import { go } from "../route";
import { CardView, dialectName } from "./card";
import { Sentence } from "./sentence";
import { TimelineView } from "./timeline";

const EVERY = 2000;
/** So wide is a card, or a timeline, at least. */
const CARD = 380;
const TIMELINE = 520;

/** A machine tells its nodes with each tick; of a cluster's node one asks. */
export function useNode(name: string): Answer<Node> {
  const { world } = useShared();
  const told = world.live.get(name);
  const asked = useAsked<Node>(told ? null : `nodes/${encodeURIComponent(name)}`, EVERY);
  return told ? { is: "here", value: told } : asked;
}

export function NodePage({ name }: { name: string }) {
  const { text } = useShared();
  return (
    <>
      <nav class="crumbs">
        <button type="button" class="link" onClick={() => go({ node: null, pod: null })}>
          ← {text.allNodes}
        </button>
      </nav>
      <NodeView name={name} alone first />
    </>
  );
}

/** `first` of the page: it tells what the bars mean. */
export function NodeView({ name, alone, first }: { name: string; alone: boolean; first: boolean }) {
  const { text } = useShared();
  const answer = useNode(name);
  if (answer.is === "gone") return <p class="box quiet">{text.gone(name)}</p>;
  if (answer.is !== "here") return <p class="box quiet">{answer.is === "failed" ? text.notAnswered : text.loading}</p>;
  const node = answer.value;
  return (
    <section class="node" aria-label={`${text.node} ${name}`}>
      <div class="node-head">
        <h2>{alone ? name : <NodeLink name={name} />}</h2>
        <span class="chip" title={text.policies[node.policy]}>
          {text.policy}: <b>{node.policy}</b>
        </span>
        {node.release_delay_seconds !== null && (
          <span class="chip" title={text.releaseDelayHint}>
            {text.releaseDelay(delay(node.release_delay_seconds))}
          </span>
        )}
        {node.offers.length > 0 && (
          <span class="chip">
            {text.offers}: {node.offers.map((offer) => dialectName(offer, text)).join(", ")}
          </span>
        )}
        {node.trouble.map((trouble) => (
          <span class="chip bad" key={trouble.text}>
            <Sentence of={trouble} />
          </span>
        ))}
        {first && node.cards.some((card) => card.tenants.length > 0) && <small class="pale-hint">{text.paleHint}</small>}
      </div>
      {node.notes.map((note) => (
        <p class="note" key={note.text}>
          <Sentence of={note} />
        </p>
      ))}
      <Body node={node} alone={alone} />
    </section>
  );
}

/** The cards, and below them who held them; one card alone has that beside it. */
function Body({ node, alone }: { node: Node; alone: boolean }) {
  const [holder, width] = useWidth<HTMLDivElement>();
  const beside = node.cards.length === 1 && width >= 2 * CARD;
  return (
    <div class={beside ? "node-body beside" : "node-body"} ref={holder}>
      <div class="cards" style={{ "--columns": columnsFor(node.cards.length, beside ? width / 2 : width, CARD) }}>
        {node.cards.map((card) => (
          <CardView key={card.uuid} card={card} />
        ))}
      </div>
      <Timelines node={node} alone={alone} width={beside ? width / 2 : width} />
    </div>
  );
}

function NodeLink({ name }: { name: string }) {
  return (
    <button type="button" class="link" onClick={() => go({ node: name })}>
      {name}
    </button>
  );
}

function Timelines({ node, alone, width }: { node: Node; alone: boolean; width: number }) {
  const { text } = useShared();
  const { timeline } = node;
  if (!timeline) return alone ? <p class="quiet">{text.noTimeline}</p> : null;
  const held = node.cards.filter((card) => timeline.cards[card.uuid]?.tenants.length);
  if (held.length === 0) return null;
  return (
    <section class="box timelines" style={{ "--columns": columnsFor(held.length, width, TIMELINE) }}>
      <div class="head">
        <h2>{text.timeline}</h2>
        <small>{text.timelineHint}</small>
      </div>
      {held.map((card) => (
        <TimelineView key={card.uuid} card={card} timeline={timeline} />
      ))}
    </section>
  );
}
