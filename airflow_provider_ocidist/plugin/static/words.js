// Numbers and times for people.

export const number = (value) => new Intl.NumberFormat("en").format(value);

export function significant(value, digits = 4) {
  if (value === null || value === undefined) return null;
  // Rounded as the log of the task is: Intl rounds the digits of 2.3055 up, which as a number is a little less.
  return new Intl.NumberFormat("en", { maximumSignificantDigits: digits, notation: Math.abs(value) < 1e-4 && value ? "scientific" : "standard" }).format(Number(value.toPrecision(digits)));
}

export function plural(count, word) {
  return `${number(count)} ${word}${count === 1 ? "" : "s"}`;
}

export function size(bytes) {
  const units = ["B", "KiB", "MiB", "GiB", "TiB"];
  let place = 0;
  while (bytes >= 1024 && place < units.length - 1) {
    bytes /= 1024;
    place += 1;
  }
  return `${new Intl.NumberFormat("en", { maximumFractionDigits: bytes < 10 && place ? 1 : 0 }).format(bytes)} ${units[place]}`;
}

export function duration(seconds) {
  const whole = Math.max(0, Math.round(seconds));
  const [days, hours, minutes] = [Math.floor(whole / 86400), Math.floor(whole / 3600) % 24, Math.floor(whole / 60) % 60];
  if (days) return `${days} d ${hours} h`;
  if (hours) return `${hours} h ${minutes} min`;
  if (minutes) return `${minutes} min ${whole % 60} s`;
  return `${whole} s`;
}

export const percent = (share) => `${Math.round(share * 100)} %`;

export function moment(unix) {
  return new Date(unix * 1000).toLocaleString(undefined, { dateStyle: "medium", timeStyle: "medium", hourCycle: "h23" });
}

export function clock(unix) {
  return new Date(unix * 1000).toLocaleTimeString(undefined, { hourCycle: "h23", hour: "2-digit", minute: "2-digit", second: "2-digit" });
}

// The end of a long id identifies the resource, its beginning the type, as in an OCID.
export const shortened = (ocid) => (ocid.length > 48 ? `${ocid.slice(0, ocid.lastIndexOf(".") + 4)}\u2026${ocid.slice(-8)}` : ocid);
