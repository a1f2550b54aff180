/* What a visitor chose, kept by their browser; where that refuses, the choice lasts as long as the page. */

export function kept(name: string): string | null {
  try {
    return localStorage.getItem(`aliquot.${name}`);
  } catch {
    return null;
  }
}

export function keep(name: string, value: string): void {
  try {
    localStorage.setItem(`aliquot.${name}`, value);
  } catch {
    // nothing is lost but the memory of it
  }
}
