/* What components share: the world they look at, the language, the theme, and questions asked again and again. */

import { createContext } from "preact";
import { useContext, useEffect, useRef, useState } from "preact/hooks";

import { ask, type Answer, type Seen } from "./link";
import type { Text, Words } from "./text";
import type { World } from "./world";

export interface Shared {
  seen: Seen;
  world: World;
  text: Text;
  words: Words;
  /** Changes when colours do: drawings on a canvas look their colours up again. */
  theme: string;
  retry: () => void;
}

export const SharedContext = createContext<Shared>(null as unknown as Shared);
export const useShared = (): Shared => useContext(SharedContext);

/** Asks at once and then every `every` ms; while the page is hidden it does not. A failure keeps what was known. */
export function useAsked<T>(path: string | null, every: number): Answer<T> {
  const [found, setFound] = useState<{ path: string | null; answer: Answer<T> }>({
    path: null,
    answer: { is: "loading" },
  });
  useEffect(() => {
    if (path === null) return undefined;
    const stop = new AbortController();
    let timer = 0;
    const again = async (): Promise<void> => {
      if (!document.hidden) {
        const answer = await ask<T>(path, stop.signal);
        if (stop.signal.aborted) return;
        setFound((before) =>
          answer.is === "failed" && before.path === path && before.answer.is === "here" ? before : { path, answer },
        );
      }
      timer = window.setTimeout(() => void again(), every);
    };
    void again();
    return () => {
      stop.abort();
      clearTimeout(timer);
    };
  }, [path, every]);
  return found.path === path ? found.answer : { is: "loading" };
}

/** The width of an element, followed as it changes. */
export function useWidth<E extends HTMLElement>(): [{ current: E | null }, number] {
  const ref = useRef<E | null>(null);
  const [width, setWidth] = useState(0);
  useEffect(() => {
    const element = ref.current;
    if (!element) return undefined;
    const watcher = new ResizeObserver(() => setWidth(Math.floor(element.clientWidth)));
    watcher.observe(element);
    setWidth(Math.floor(element.clientWidth));
    return () => watcher.disconnect();
  }, []);
  return [ref, width];
}

/** Seconds as they pass, for ages and for "next try in". */
export function useClock(every = 1000): number {
  const [now, setNow] = useState(Date.now());
  useEffect(() => {
    const timer = window.setInterval(() => setNow(Date.now()), every);
    return () => clearInterval(timer);
  }, [every]);
  return now;
}
