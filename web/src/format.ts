/* Numbers for people. The unit is chosen by size; digits are few and do not jump. */

export function memory(mib: number): string {
  if (mib < 1024) return `${Math.round(mib)} MiB`;
  const gib = mib / 1024;
  if (gib < 100) return `${trim(gib.toFixed(1))} GiB`;
  if (gib < 10_000) return `${grouped(Math.round(gib))} GiB`;
  return `${grouped(Math.round(gib / 1024))} TiB`;
}

/** The same, rounded down: 3,071 MiB free must not look like the 3 GiB that are needed. */
export function memoryAtMost(mib: number): string {
  if (mib < 1024) return `${Math.floor(mib)} MiB`;
  return `${trim((Math.floor((mib * 10) / 1024) / 10).toFixed(1))} GiB`;
}

/** 18 of 24 GiB, with the unit said once where both have it; nothing has none. */
export function memoryOf(part: number, whole: number): [string, string] {
  if (part === 0) return ["0", memory(whole)];
  const [a, b] = [memory(part), memory(whole)];
  return a.slice(-3) === b.slice(-3) ? [a.slice(0, -4), b] : [a, b];
}

export function percent(ratio: number, digits = 0): string {
  return `${(ratio * 100).toFixed(digits)}%`;
}

export function ratio(part: number, whole: number): number {
  return whole > 0 ? part / whole : 0;
}

export function grouped(value: number): string {
  return String(Math.round(value)).replace(/\B(?=(\d{3})+(?!\d))/g, ",");
}

/** Few are told with a decimal. */
export function few(value: number): string {
  return value < 100 ? trim(value.toFixed(1)) : grouped(value);
}

/** 9,500 but 24k: for the narrow edge of a chart. */
export function compact(value: number): string {
  if (Math.abs(value) < 10_000)
    return trim(grouped(Math.trunc(value)) + (value % 1 ? (value % 1).toFixed(1).slice(1) : ""));
  return Math.abs(value) < 1_000_000 ? `${few(value / 1000)}k` : `${few(value / 1_000_000)}M`;
}

/** A Pod's name without the namespace that most are in, as kubectl leaves it out. */
export function shortKey(key: string): string {
  return key.replace(/^default\//, "");
}

/** 45s, 12m, 3h 20m, 5d: as kubectl says ages; in the units of the language. */
export function age(seconds: number, { units }: { units: Units }): string {
  const whole = Math.max(0, Math.floor(seconds));
  if (whole < 120) return `${whole}${units.seconds}`;
  const minutes = Math.floor(whole / 60);
  if (minutes < 60) return `${minutes}${units.minutes}`;
  const hours = Math.floor(minutes / 60);
  const rest = minutes % 60 && hours < 10 ? ` ${minutes % 60}${units.minutes}` : "";
  if (hours < 48) return `${hours}${units.hours}${rest}`;
  return `${Math.floor(hours / 24)}${units.days}`;
}

export interface Units {
  seconds: string;
  minutes: string;
  hours: string;
  days: string;
}

export function delay(seconds: number): string {
  return seconds !== 0 && seconds < 1 ? `${trim((seconds * 1000).toFixed(1))} ms` : `${trim(seconds.toFixed(2))} s`;
}

export function shortUuid(uuid: string): string {
  return uuid.length > 12 ? `${uuid.slice(0, 12)}…` : uuid;
}

/** A command as one would type it. */
export function shell(words: readonly string[]): string {
  return words.map((word) => (/^[\w@%+=:,./-]+$/.test(word) ? word : `'${word.replaceAll("'", "'\\''")}'`)).join(" ");
}

function trim(text: string): string {
  return text.includes(".") ? text.replace(/\.?0+$/, "") : text;
}
