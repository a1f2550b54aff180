/* How many columns a grid gets, so that its last row is as full as the others. Pure. */

const GAP = 12;

/** At most as many columns as fit, at least half of those: the one with the fewest empty places, the wider if equal. */
export function columnsFor(count: number, width: number, least: number): number {
  const most = Math.max(1, Math.min(count, Math.floor((width + GAP) / (least + GAP))));
  let best = most;
  for (let columns = most; columns >= most / 2; columns--)
    if (emptyPlaces(count, columns) < emptyPlaces(count, best)) best = columns;
  return best;
}

function emptyPlaces(count: number, columns: number): number {
  return (columns - (count % columns)) % columns;
}
