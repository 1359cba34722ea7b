// Light or dark like Airflow: its choice is on the document that frames this one, else in its storage.

const mine = document.documentElement;

export function followTheme() {
  const frame = framing();
  if (!frame) {
    apply(stored());
    return;
  }
  mine.dataset.framed = "";
  const read = () => apply(frame.classList.contains("dark") ? "dark" : frame.classList.contains("light") ? "light" : stored());
  read();
  new MutationObserver(read).observe(frame, { attributes: true, attributeFilter: ["class"] });
}

function framing() {
  try {
    return window.parent === window ? null : window.parent.document.documentElement;
  } catch {
    return null; // another origin: use the browser's preference
  }
}

function stored() {
  try {
    return localStorage.getItem("theme");
  } catch {
    return null;
  }
}

function apply(theme) {
  if (theme === "dark" || theme === "light") mine.dataset.theme = theme;
  else delete mine.dataset.theme;
}
