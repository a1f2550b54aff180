/*
 * The line to the server: one EventSource, opened again with growing patience when it breaks.
 *
 * An EventSource does not say why it failed, so that after each failure one plain request asks: 401 means that a token
 * is needed, and then there is no use in trying on by ourselves. Silence counts as failure too: a server that hangs, or
 * a laptop that slept, must not leave old figures looking alive.
 */

import type { DashboardState, Tick } from "./contract";
import { advance, begin, type World } from "./world";

const SILENCE = 6_000; // a tick comes every second at least
const FIRST_WAIT = 1_000;
const LONGEST_WAIT = 15_000;

export type Standing = { is: "connecting" } | { is: "live" } | { is: "lost"; retryAt: number } | { is: "locked" };

export interface Seen {
  world: World | null;
  standing: Standing;
  heardAt: number;
}

export function waitBefore(attempt: number, chance: number): number {
  return Math.min(LONGEST_WAIT, FIRST_WAIT * 2 ** attempt) * (0.75 + chance / 2);
}

export class Link {
  seen: Seen = { world: null, standing: { is: "connecting" }, heardAt: Date.now() };
  private source: EventSource | null = null;
  private attempt = 0;
  private retry = 0;
  private silence = 0;

  constructor(private readonly changed: (seen: Seen) => void) {}

  open(): void {
    clearTimeout(this.retry);
    this.source?.close();
    const source = new EventSource("api/v1/events");
    this.source = source;
    source.addEventListener("state", (event) =>
      this.heard(source, () => begin(JSON.parse(event.data) as DashboardState, this.seen.world)),
    );
    source.addEventListener("tick", (event) =>
      this.heard(source, (world) => world && advance(world, JSON.parse(event.data) as Tick)),
    );
    source.onerror = () => this.failed(source);
    this.watch(source);
  }

  private heard(source: EventSource, next: (world: World | null) => World | null): void {
    if (source !== this.source) return;
    try {
      const world = next(this.seen.world);
      this.attempt = 0;
      this.tell({ world, standing: { is: "live" }, heardAt: Date.now() });
      this.watch(source);
    } catch (error) {
      console.error(error); // state and ticks do not fit together: ask for a new state
      this.failed(source);
    }
  }

  private watch(source: EventSource): void {
    clearTimeout(this.silence);
    this.silence = window.setTimeout(() => this.failed(source), SILENCE);
  }

  private failed(source: EventSource): void {
    if (source !== this.source) return;
    clearTimeout(this.silence);
    source.close();
    this.source = null;
    const wait = waitBefore(this.attempt++, Math.random());
    this.retry = window.setTimeout(() => this.open(), wait);
    this.tell({ ...this.seen, standing: { is: "lost", retryAt: Date.now() + wait } });
    void this.askWhy();
  }

  private async askWhy(): Promise<void> {
    const answer = await fetch("api/v1/state", { cache: "no-store" }).catch(() => null);
    void answer?.body?.cancel();
    if (answer?.status !== 401 || this.source) return;
    clearTimeout(this.retry);
    this.tell({ ...this.seen, standing: { is: "locked" } });
  }

  private tell(seen: Seen): void {
    this.seen = seen;
    this.changed(seen);
  }
}

export type Answer<T> = { is: "loading" } | { is: "here"; value: T } | { is: "gone" } | { is: "failed" };

/** One question; `failed` is no answer at all, `gone` is the answer that there is none. */
export async function ask<T>(path: string, signal: AbortSignal): Promise<Answer<T>> {
  try {
    const answer = await fetch(`api/v1/${path}`, { signal, cache: "no-store" });
    if (answer.status === 404) return { is: "gone" };
    if (!answer.ok) return { is: "failed" };
    return { is: "here", value: (await answer.json()) as T };
  } catch {
    return { is: "failed" };
  }
}
