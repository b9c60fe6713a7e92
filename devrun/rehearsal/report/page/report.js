"use strict";
(() => {
  const COLOURS = [
    "#4878a8", "#c8553d", "#3c8d5a", "#8a6bb0", "#b9822b", "#3aa0a0", "#b0527e", "#6b7a3a",
  ];
  const report = JSON.parse(document.getElementById("data").textContent);
  const element = (name, text, parent, attributes = {}) => {
    const made = document.createElement(name);
    if (text !== null) made.textContent = text; // never markup: names come from a log
    for (const [key, value] of Object.entries(attributes)) made.setAttribute(key, value);
    if (parent) parent.append(made);
    return made;
  };
  const style = (name) =>
    getComputedStyle(document.documentElement).getPropertyValue(name).trim();
  const shown = (value) => {
    if (value === null || value === undefined) return "–";
    return typeof value === "number" ? String(Number(value.toPrecision(6))) : value; // "NaN"
  };
  const colour = (index) => COLOURS[index % COLOURS.length];
  const SPECIAL = { NaN: NaN, Infinity: Infinity, "-Infinity": -Infinity };
  const read = (value) => (typeof value === "string" ? SPECIAL[value] : value);

  const state = { axis: "step", smoothing: 0, log: false, hidden: new Set() };
  let plots = [];

  // Exponential moving average without bias towards its start.
  const smoothed = (values, weight) => {
    let sum = 0, norm = 0;
    return values.map((value) => {
      if (value === null || !Number.isFinite(value)) return null;
      sum = sum * weight + value * (1 - weight);
      norm = norm * weight + (1 - weight);
      return sum / norm;
    });
  };

  // Curves of several runs on one axis: a row for every place that any of them has.
  const table = (curves) => {
    const places = [...new Set(curves.flatMap((curve) => curve.x))].sort((a, b) => a - b);
    const row = new Map(places.map((place, index) => [place, index]));
    return [places, ...curves.map((curve) => {
      const column = new Array(places.length).fill(undefined);
      curve.x.forEach((place, index) => { column[row.get(place)] = curve.y[index]; });
      return column;
    })];
  };

  // What was learnt comes first, then what it took.
  const LAST = ["lr", "momentum", "samples_per_sec", "time", "data_time",
    "wait_time", "copy_time", "compute_time", "memory"];
  const rank = (name) => LAST.findIndex((last) => name.split("/")[0] === last);
  const names = [...new Set(report.runs.flatMap((run) => run.curves.map((c) => c.name)))]
    .sort((a, b) => rank(a) - rank(b));

  const curvesOf = (name) => {
    const found = [];
    report.runs.forEach((run, index) => {
      if (state.hidden.has(index)) return;
      for (const curve of run.curves.filter((entry) => entry.name === name)) {
        const x = state.axis === "step" ? curve.steps : curve.seconds;
        if (!x) continue;
        const values = curve.values.map(read);
        const plain = values.map((value) =>
          Number.isFinite(value) && !(state.log && value <= 0) ? value : null);
        const label = `${curve.mode}${report.runs.length > 1 ? ` ${run.name}` : ""}`;
        const odd = x.filter((_, at) => !Number.isFinite(values[at]));
        const look = { label, colour: colour(index), mode: curve.mode, odd };
        if (state.smoothing) {
          found.push({ ...look, x, y: plain, faint: true, label: `${label} (as logged)` });
          look.odd = [];
          found.push({ ...look, x, y: smoothed(values, state.smoothing) });
        } else found.push({ ...look, x, y: plain });
      }
    });
    return found;
  };

  // What is NaN or infinite has no height: a triangle at the lower edge says where.
  const mark = (plot, curves) => {
    const { ctx, bbox } = plot;
    const size = 5 * devicePixelRatio;
    const floor = bbox.top + bbox.height;
    for (const curve of curves)
      for (const place of curve.odd) {
        const at = plot.valToPos(place, "x", true);
        if (at < bbox.left || at > bbox.left + bbox.width) continue;
        ctx.fillStyle = style("--bad");
        ctx.beginPath();
        ctx.moveTo(at - size, floor);
        ctx.lineTo(at + size, floor);
        ctx.lineTo(at, floor - 2 * size);
        ctx.fill();
      }
  };

  const draw = () => {
    plots.forEach((plot) => plot.destroy());
    plots = [];
    for (const name of names) {
      const holder = document.getElementById(`chart-${names.indexOf(name)}`);
      const curves = curvesOf(name);
      holder.parentElement.hidden = !curves.length;
      if (!curves.length) continue;
      const axis = { stroke: style("--soft"), grid: { stroke: style("--line"), width: 1 },
        ticks: { stroke: style("--line"), width: 1 } };
      const place = state.axis === "step" ? "step" : "seconds of training";
      plots.push(new uPlot({
        width: holder.clientWidth || 520, height: 240,
        hooks: { draw: [(plot) => mark(plot, curves)] },
        cursor: { sync: { key: "all" }, drag: { x: true, y: false } },
        scales: { x: { time: false }, y: { distr: state.log ? 3 : 1 } },
        axes: [{ ...axis, label: place, labelSize: 20 }, { ...axis, size: 70,
          values: (_, ticks) => ticks.map((tick) => (tick === null ? "" : shown(tick))) }],
        series: [{ label: place, value: (_, value) => shown(value) },
          ...curves.map((curve) => ({
            label: curve.label, stroke: curve.faint ? `${curve.colour}55` : curve.colour,
            width: curve.faint ? 1 : 1.75, dash: curve.mode === "train" ? [] : [6, 4],
            spanGaps: true, points: { show: curve.x.length < 60 && !curve.faint },
            value: (_, value) => shown(value),
          }))],
      }, table(curves), holder));
    }
  };

  const charts = document.getElementById("charts");
  names.forEach((name, index) => {
    const box = element("section", null, charts, { class: "chart" });
    element("h3", name, box);
    const curves = report.runs.flatMap((run) => run.curves.filter((c) => c.name === name)
      .map((curve) => ({ ...curve, run: run.name })));
    const said = curves.map(({ run, mode, values }) =>
      `${run} ${mode} from ${shown(values[0])} to ${shown(values[values.length - 1])}`);
    element("div", null, box, { id: `chart-${index}`, role: "img",
      "aria-label": `${name}: ${said.join("; ")}` });
    const odd = curves.flatMap((curve) => curve.values).map(read)
      .filter((value) => !Number.isFinite(value)).length;
    const count = odd === 1 ? "1 value is" : `${odd} values are`;
    if (odd) element("p", `▲ ${count} NaN or infinite`, box, { class: "bad" });
  });

  const controls = document.getElementById("controls");
  const labelled = (text, input) => {
    const label = element("label", null, controls);
    label.append(input, text);
    return input;
  };
  if (report.runs.length > 1)
    report.runs.forEach((run, index) => {
      const input = element("input", null, null, { type: "checkbox", name: "run" });
      input.checked = true;
      labelled(run.name, input).addEventListener("change", () => {
        if (input.checked) state.hidden.delete(index); else state.hidden.add(index);
        draw();
      });
      element("span", null, input.parentElement, { class: "swatch",
        style: `border-color: ${colour(index)}` });
    });
  const smoothing = element("input", null, null,
    { type: "range", id: "smoothing", min: 0, max: 0.99, step: 0.01, value: 0 });
  labelled("smoothing", smoothing).addEventListener("input", () => {
    state.smoothing = Number(smoothing.value);
    draw();
  });
  const log = element("input", null, null, { type: "checkbox", id: "log" });
  labelled("logarithmic", log).addEventListener("change", () => {
    state.log = log.checked;
    draw();
  });
  const axis = element("select", null, null, { id: "axis" });
  element("option", "by step", axis, { value: "step" });
  element("option", "by time", axis, { value: "seconds" });
  labelled("", axis).addEventListener("change", () => {
    state.axis = axis.value;
    draw();
  });
  element("span", "drag to zoom, double click to go back; dashed: validation", controls,
    { class: "soft" });

  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", draw);
  let width = innerWidth;
  addEventListener("resize", () => {
    if (innerWidth !== width) { width = innerWidth; draw(); }
  });
  addEventListener("beforeprint", () =>
    document.querySelectorAll("details").forEach((entry) => { entry.open = true; }));
  draw();
})();
