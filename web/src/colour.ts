/*
 * Colour by class, shade by tenant. Blue, orange and bluish green (Okabe and Ito) stay apart for every kind of colour
 * blindness; nothing is told by colour alone. A tenant keeps its shade for as long as the page is open.
 */

import type { AppClass } from "./contract";

/** So many shades has each class, in style/base.css. */
const SHADES = 5;

const given = new Map<string, number>();
const next: Record<AppClass, number> = { online: 0, offline: 0, normal: 0 };

export function shadeOf(key: string, kind: AppClass): number {
  const id = `${kind} ${key}`;
  let shade = given.get(id);
  if (shade === undefined) given.set(id, (shade = next[kind]++ % SHADES));
  return shade;
}

/** As CSS; a canvas asks `resolved` for it. A class that only newer agents know looks like normal work. */
export function tenantColour(key: string, kind: AppClass): string {
  const known = kind in next ? kind : "normal";
  return `var(--${known}-${shadeOf(key, known)})`;
}

let probe: HTMLElement | null = null;
let pixel: CanvasRenderingContext2D | null = null;
const cache = new Map<string, [number, number, number]>();
let cachedTheme = "";

/** The red, green and blue of any CSS colour in the theme of now: variables and mixes mean nothing to a canvas. */
export function rgb(css: string, theme: string): [number, number, number] {
  if (theme !== cachedTheme) {
    cache.clear();
    cachedTheme = theme;
  }
  let found = cache.get(css);
  if (!found) {
    if (!probe || !pixel) {
      probe = document.body.appendChild(document.createElement("i"));
      probe.hidden = true;
      pixel = document.createElement("canvas").getContext("2d", { willReadFrequently: true })!;
    }
    probe.style.color = css;
    pixel.fillStyle = getComputedStyle(probe).color;
    pixel.fillRect(0, 0, 1, 1);
    const [r, g, b] = pixel.getImageData(0, 0, 1, 1).data;
    cache.set(css, (found = [r!, g!, b!]));
  }
  return found;
}

export function resolved(css: string, theme: string, alpha = 1): string {
  const [r, g, b] = rgb(css, theme);
  return `rgba(${r}, ${g}, ${b}, ${alpha})`;
}
