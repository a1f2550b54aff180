/* The search box: nodes and Pods by name. The server searches; the page may know only a part. */

import { useEffect, useRef, useState } from "preact/hooks";

import type { SearchResult } from "../contract";
import { useShared } from "../hooks";
import { ask } from "../link";
import { go } from "../route";
import type { Text } from "../text";

interface Hit {
  id: string;
  label: string;
  detail: string;
  open: () => void;
}

const PATIENCE = 120; // ms after the last key

export function Search() {
  const { text } = useShared();
  const [typed, setTyped] = useState("");
  const [found, setFound] = useState<SearchResult | "failed" | null>(null);
  const [at, setAt] = useState(0);
  const [shown, setShown] = useState(false);
  const box = useRef<HTMLInputElement>(null);

  useEffect(() => {
    const wanted = typed.trim();
    if (!wanted) return setFound(null);
    const stop = new AbortController();
    const timer = window.setTimeout(async () => {
      const answer = await ask<SearchResult>(`search?q=${encodeURIComponent(wanted)}&limit=50`, stop.signal);
      if (stop.signal.aborted) return;
      setFound(answer.is === "here" ? answer.value : "failed");
      setAt(0);
    }, PATIENCE);
    return () => {
      clearTimeout(timer);
      stop.abort();
    };
  }, [typed]);

  const leave = (): void => {
    setShown(false);
    setTyped("");
    box.current?.blur();
  };
  const hits = found && found !== "failed" ? hitsOf(found, text) : [];
  const open = (hit: Hit | undefined): void => {
    if (!hit) return;
    hit.open();
    leave();
  };
  const onKey = (event: KeyboardEvent): void => {
    if (event.key === "Escape") leave();
    else if (event.key === "Enter") open(hits[at]);
    else if (event.key === "ArrowDown") setAt(Math.min(at + 1, hits.length - 1));
    else if (event.key === "ArrowUp") setAt(Math.max(at - 1, 0));
    else return;
    event.preventDefault();
    event.stopPropagation();
  };
  const listed = shown && typed.trim() !== "" && found !== null;
  return (
    <div class="search" role="search">
      <input
        id="search"
        ref={box}
        type="search"
        role="combobox"
        aria-expanded={listed}
        aria-controls="found"
        aria-activedescendant={listed && hits[at] ? `hit-${at}` : undefined}
        aria-label={text.search}
        placeholder={text.search}
        list={undefined}
        autocomplete="off"
        spellcheck={false}
        value={typed}
        onInput={(event) => setTyped(event.currentTarget.value)}
        onFocus={() => setShown(true)}
        onBlur={() => setShown(false)}
        onKeyDown={onKey}
      />
      <kbd aria-hidden="true">/</kbd>
      {listed && (
        <ul id="found" role="listbox" aria-label={text.search}>
          {hits.map((hit, index) => (
            <li
              id={`hit-${index}`}
              key={hit.id}
              role="option"
              aria-selected={index === at}
              ref={(item) => {
                if (index === at) item?.scrollIntoView({ block: "nearest" });
              }}
              onMouseDown={(event) => {
                event.preventDefault(); // or the box loses the focus first, and the list is gone
                open(hit);
              }}
            >
              <span>{hit.label}</span> <small>{hit.detail}</small>
            </li>
          ))}
          {hits.length === 0 && (
            <li class="none">{found === "failed" ? text.searchFailed : text.searchEmpty(typed.trim())}</li>
          )}
        </ul>
      )}
    </div>
  );
}

function hitsOf(found: SearchResult, text: Text): Hit[] {
  return [
    ...found.nodes.map((name) => ({
      id: `node ${name}`,
      label: name,
      detail: text.node,
      open: () => go({ node: name, pod: null }),
    })),
    ...found.pods.map((pod) => ({
      id: `pod ${pod.key}`,
      label: pod.key,
      detail: [text[pod.class], text.phases[pod.phase] ?? pod.phase, pod.node].filter(Boolean).join(" · "),
      open: () => go({ pod: pod.key }),
    })),
  ];
}
