// Instants, durations and foreign text as a person reads them.

// A character that nobody sees, or that turns the text around it, as its escape.
export function shown(text) {
  return String(text ?? "").replace(/[\p{Cc}\p{Cf}\p{Zl}\p{Zp}\p{Cs}]/gu, (each) =>
    each === "\n" ? each : `\\u{${each.codePointAt(0).toString(16)}}`);
}

const UNITS = [["y", 31557600], ["d", 86400], ["h", 3600], ["m", 60], ["s", 1]];

// The two largest units of a duration, rounded up: `1h 59m`, `41s`.
export function durationText(ms) {
  let left = Math.max(0, Math.ceil(ms / 1000));
  const parts = [];
  for (const [unit, length] of UNITS) {
    const count = Math.floor(left / length);
    if (count || parts.length) parts.push(`${count}${unit}`);
    left -= count * length;
    if (parts.length === 2) break;
  }
  if (parts.length === 2 && /^0/.test(parts[1])) parts.pop();
  return parts.join(" ") || "0s";
}

// Rounded up to the second: a time that is read must not be before the one that binds.
export function localText(ms) {
  const when = new Date(Math.ceil(ms / 1000) * 1000);
  if (Number.isNaN(when.getTime())) return "later than a calendar goes";
  const options = { hour: "2-digit", minute: "2-digit", second: "2-digit", timeZoneName: "short" };
  if (when.toDateString() === new Date().toDateString()) return when.toLocaleTimeString([], options);
  return when.toLocaleString([], { ...options, year: "numeric", month: "short", day: "numeric" });
}

// A wait as a clock: what is left, until when, and which share of it is over (null: no end).
export function clockOf(deadline_ms, since_ms, now) {
  if (deadline_ms === null) return { left: "until somebody ends it", until: "", gone: null };
  const left = deadline_ms - now;
  const whole = since_ms === null ? left : deadline_ms - since_ms;
  const gone = whole > 0 ? Math.min(1, Math.max(0, 1 - left / whole)) : 1;
  return { left: left > 0 ? `${durationText(left)} left` : "ends now", until: `until ${localText(deadline_ms)}`, gone };
}
