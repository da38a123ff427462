"use strict";
// Draws the charts of the report from the JSON in the page. All text of the job is in the page's HTML,
// escaped; what is set here is set as text.
(() => {
  const data = JSON.parse(document.getElementById("data").textContent);
  const DAY = 86400;
  let charts = [];
  let syncing = false;

  const colour = (name) => getComputedStyle(document.documentElement).getPropertyValue(name).trim();
  const palette = (number) => colour(`--c${number % 11}`);
  const utc = (seconds) => uPlot.tzDate(new Date(seconds * 1e3), "Etc/UTC");
  const clock = uPlot.fmtDate("{YYYY}-{MM}-{DD} {HH}:{mm}:{ss}");
  const at = (seconds) => clock(utc(seconds));
  const span = (seconds) => {
    const short = (value, unit) => `${Number(value.toFixed(value < 10 ? 1 : 0))} ${unit}`;
    if (seconds < 60) return short(seconds, "s");
    if (seconds < 3600) return short(seconds / 60, "min");
    return seconds < 2 * DAY ? short(seconds / 3600, "h") : short(seconds / DAY, "d");
  };
  const absolute = (times) => times.map((time) => data.began + time);
  const width = () => (document.documentElement.dataset.print ? 680 : document.body.clientWidth - 2);

  const axis = (more) => ({
    stroke: colour("--quiet"), grid: { stroke: colour("--line"), width: 1 }, ticks: { stroke: colour("--line") },
    font: "12px system-ui", ...more,
  });
  const date = "\n{YYYY}-{MM}-{DD}";
  // uPlot's own list has nothing between 1 and 5 min: a short job on a phone would get no label.
  const MIN = 60, HOUR = 3600;
  const TIMES = [
    0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1, 2, 5, 10, 15, 20, 30, MIN, 2 * MIN, 3 * MIN, 5 * MIN, 10 * MIN,
    15 * MIN, 20 * MIN, 30 * MIN, HOUR, 2 * HOUR, 3 * HOUR, 4 * HOUR, 6 * HOUR, 8 * HOUR, 12 * HOUR, DAY, 2 * DAY, 3 * DAY,
    5 * DAY, 10 * DAY, 15 * DAY, 30 * DAY, 60 * DAY, 90 * DAY, 180 * DAY, 365 * DAY,
  ];
  const timeAxis = () => axis({
    space: 80, incrs: TIMES,
    values: [
      // increment, form, and the form where the year, month, day, hour or minute changes
      [365 * DAY, "{YYYY}", null, null, null, null, null, null, 1],
      [DAY, "{MM}-{DD}", "\n{YYYY}", null, null, null, null, null, 1],
      [60, "{HH}:{mm}", date, null, date, null, null, null, 1],
      [1, "{HH}:{mm}:{ss}", date, null, date, null, null, null, 1],
      [0.001, ":{ss}.{fff}", date + " {HH}:{mm}", null, date + " {HH}:{mm}", null, "\n{HH}:{mm}", null, 1],
    ],
  });
  const durationAxis = () => axis({
    size: 72, values: (u, values) => values.map(span),
    incrs: [0.1, 0.2, 0.5, 1, 2, 5, 10, 15, 30, 60, 120, 300, 600, 900, 1800, 3600, 7200, 14400, 21600, 43200, DAY, 2 * DAY, 7 * DAY, 30 * DAY],
  });
  const WHOLE = [1, 2, 5, 10, 20, 50, 100, 200, 500, 1000, 2000, 5000, 10000, 20000, 50000, 1e5, 2e5, 5e5, 1e6];

  // The range of time is one for all charts over time.
  const share = (source) => {
    if (syncing) return;
    syncing = true;
    const { min, max } = source.scales.x;
    for (const each of charts) if (each.overTime && each.plot !== source) each.plot.setScale("x", { min, max });
    syncing = false;
  };

  // Vertical lines where attempts ended or steps were gone back to.
  const marks = (values) => (u) => {
    if (!values.length) return;
    const { ctx, bbox } = u;
    ctx.save();
    ctx.beginPath();
    ctx.rect(bbox.left, bbox.top, bbox.width, bbox.height);
    ctx.clip();
    ctx.strokeStyle = colour("--bad");
    ctx.globalAlpha = values.length > 100 ? 0.25 : 0.8;
    ctx.setLineDash([4 * devicePixelRatio, 4 * devicePixelRatio]);
    ctx.lineWidth = devicePixelRatio;
    for (const value of values) {
      const x = Math.round(u.valToPos(value, "x", true));
      ctx.beginPath();
      ctx.moveTo(x, bbox.top);
      ctx.lineTo(x, bbox.top + bbox.height);
      ctx.stroke();
    }
    ctx.restore();
  };

  const make = (id, height, options, values, overTime) => {
    const place = document.getElementById(id);
    if (!place) return;
    place.replaceChildren();
    const hooks = { ...options.hooks, setScale: overTime ? [(u, key) => key === "x" && share(u)] : [] };
    const plot = new uPlot({
      width: width(), height, tzDate: utc, cursor: { drag: { x: true, y: false } }, padding: [8, 24, 0, 0],
      ...options, hooks,
    }, values, place);
    charts.push({ plot, overTime });
  };

  const whole = { time: true, min: data.began, max: Math.max(data.until, data.began + 1) };
  const timeScale = () => ({ time: true, range: (u, min, max) => [min ?? whole.min, max ?? whole.max] });

  // --- the timeline ---------------------------------------------------------------------------------

  const timeline = () => {
    const lanes = data.lanes;
    const rows = lanes.length + 1;
    const row = (number) => rows - 1 - number; // the first lane is at the top
    const draw = (u) => {
      const { ctx, bbox } = u;
      const pixel = devicePixelRatio;
      const height = bbox.height / rows;
      ctx.save();
      ctx.beginPath();
      ctx.rect(bbox.left, bbox.top, bbox.width, bbox.height);
      ctx.clip();
      const place = (time) => u.valToPos(data.began + time, "x", true);
      const colours = lanes.map((each) => palette(each.colour));
      for (const [lane, start, end, part] of data.spans) {
        const left = place(start), right = place(end);
        if (right < bbox.left || left > bbox.left + bbox.width) continue;
        const base = bbox.top + height * (lane + 2) - 2 * pixel;
        const tall = Math.max(pixel, (height - 4 * pixel) * part);
        ctx.fillStyle = colours[lane];
        ctx.fillRect(left, base - tall, Math.max(pixel, right - left), tall);
      }
      ctx.textAlign = "center";
      ctx.textBaseline = "middle";
      const middle = bbox.top + height / 2;
      ctx.font = `${11 * pixel}px system-ui`;
      ctx.fillStyle = colour("--quiet");
      ctx.strokeStyle = colour("--line");
      for (const [number, start, end] of data.attempts) {
        const left = place(start), right = place(end);
        ctx.strokeRect(left, bbox.top + 2 * pixel, Math.max(pixel, right - left), height - 4 * pixel);
        if (right - left > 24 * pixel) ctx.fillText(`${number}`, (left + right) / 2, middle);
      }
      ctx.restore();
      ctx.save();
      ctx.textAlign = "center";
      ctx.textBaseline = "middle";
      ctx.font = `bold ${12 * pixel}px system-ui`;
      for (const { symbol, good, times } of data.ends) {
        ctx.fillStyle = colour(good ? "--good" : "--bad");
        for (const x of times.map(place)) {
          if (x >= bbox.left && x <= bbox.left + bbox.width + 1) ctx.fillText(symbol, x, middle);
        }
      }
      ctx.restore();
    };
    const readout = document.getElementById("timeline-readout");
    const told = (u) => {
      if (u.cursor.left < 0) { readout.textContent = ""; return; }
      const time = u.posToVal(u.cursor.left, "x") - data.began;
      const here = data.spans.filter(([, start, end]) => start <= time && time < end)
        .map(([lane, , , part]) => lanes[lane].name + (part < 1 ? ` ${Math.round(part * 100)}%` : ""));
      readout.textContent = `${at(data.began + time)}: ${here.join(", ") || "nothing"}`;
    };
    const narrow = width() < 600;
    make("timeline-chart", 26 * rows + 50, {
      scales: { x: timeScale(), y: { range: [0, rows] } },
      legend: { show: false },
      series: [{}, { show: false }],
      axes: [timeAxis(), axis({
        splits: () => Array.from({ length: rows }, (_, number) => row(number) + 0.5),
        values: () => ["attempts", ...lanes.map((each) => each.name)], size: narrow ? 106 : 120,
        grid: { show: false }, ticks: { show: false }, font: narrow ? "11px system-ui" : "12px system-ui",
      })],
      hooks: { draw: [draw], setCursor: [told] },
    }, [[whole.min, whole.max], [0, 0]], true);
  };

  // --- lines over time and over steps ---------------------------------------------------------------

  const when = { label: "time", value: (u, value) => (value == null ? "" : at(value)) };

  const progress = () => make("progress-chart", 260, {
    scales: { x: timeScale() },
    series: [when,
      { label: "last step", stroke: palette(0), width: 1.5, value: (u, value) => value ?? "" },
      { label: "checkpoint", stroke: palette(2), width: 0, points: { show: true, size: 6, fill: palette(2) }, paths: () => null,
        value: (u, value) => value ?? "" }],
    axes: [timeAxis(), axis({ size: 64 })],
    hooks: { draw: [marks(absolute(data.restarts))] },
  }, uPlot.join([[absolute(data.steps[0]), data.steps[1]], [absolute(data.commits[0]), data.commits[1]]]), true);

  const rungs = () => make("rungs-chart", 180, {
    scales: { x: timeScale(), y: { range: (u, min, max) => [0, Math.max(max, data.fullRung || 0) * 1.1 || 1] } },
    series: [when, { label: "devices", stroke: palette(3), width: 2, paths: uPlot.paths.stepped({ align: 1 }) }],
    axes: [timeAxis(), axis({ size: 64, incrs: WHOLE })],
  }, [absolute(data.rungs[0]), data.rungs[1]], true);

  const ages = () => make("ages-chart", 200, {
    scales: { x: timeScale(), y: { range: (u, min, max) => [0, max * 1.05 || 1] } },
    series: [when, { label: "age of the newest checkpoint", stroke: palette(2), width: 1.5, points: { show: false },
      value: (u, value) => (value == null ? "" : span(value)) }],
    axes: [timeAxis(), durationAxis()],
    hooks: { draw: [marks(absolute(data.restarts))] },
  }, [absolute(data.ages[0]), data.ages[1]], true);

  const losses = () => data.losses.forEach((each, number) => {
    const thinned = each.low.length > 0;
    const line = (label, colourNumber, more) => ({
      label, stroke: palette(colourNumber), width: 1, points: { show: false },
      value: (u, value) => (value == null ? "" : value.toPrecision(5)), ...more,
    });
    make(`loss-${number}-chart`, 280, {
      scales: { x: { time: false } },
      series: [{ label: "step" }, line("loss", 0, { width: 1.5 }),
        ...(thinned ? [line("highest nearby", 5, { dash: [2, 3] }), line("lowest nearby", 5, { dash: [6, 3] })] : [])],
      bands: thinned ? [{ series: [2, 3], fill: `${palette(5)}33` }] : [],
      axes: [axis({ space: 70 }), axis({ size: 64 })],
      hooks: { draw: [marks(each.restarts)] },
    }, [each.steps, each.last, ...(thinned ? [each.high, each.low] : [])], false);
  });

  // --- recoveries -----------------------------------------------------------------------------------

  const recoveries = () => {
    const { attempts, names, parts } = data.recoveries;
    let below = attempts.map(() => 0);
    const stacked = parts.map((values) => (below = values.map((value, number) => value + below[number])));
    const bars = uPlot.paths.bars({ size: [0.7, 60] });
    const series = names.map((name, number) => ({
      label: name, fill: palette(number), stroke: colour("--back"), width: 1, paths: bars, points: { show: false },
      value: (u, value, _, place) => (place == null ? "" : span(parts[number][place])),
    })).reverse();
    make("recoveries-chart", 280, {
      scales: { x: { time: false, range: [attempts[0] - 0.6, attempts[attempts.length - 1] + 0.6] }, y: { range: (u, min, max) => [0, max * 1.05 || 1] } },
      series: [{ label: "attempt" }, ...series],
      axes: [axis({ space: 40, incrs: WHOLE }), durationAxis()],
    }, [attempts, ...stacked.reverse()], false);
  };

  // --- the page -------------------------------------------------------------------------------------

  const draw = () => {
    const first = charts.find((each) => each.overTime);
    const kept = first ? { min: first.plot.scales.x.min, max: first.plot.scales.x.max } : null;
    for (const each of charts) each.plot.destroy();
    charts = [];
    for (const each of [timeline, progress, losses, rungs, ages]) each();
    if (data.recoveries.attempts.length) recoveries();
    if (kept) zoomTo(kept.min, kept.max);
    document.documentElement.dataset.drawn = Math.round(performance.now());
  };
  const zoomTo = (min, max) => {
    const first = charts.find((each) => each.overTime);
    if (first) first.plot.setScale("x", { min, max });
  };
  const zooms = {
    in: (min, max) => [min + (max - min) / 4, max - (max - min) / 4],
    out: (min, max) => [min - (max - min) / 2, max + (max - min) / 2],
    left: (min, max) => [min - (max - min) / 4, max - (max - min) / 4],
    right: (min, max) => [min + (max - min) / 4, max + (max - min) / 4],
    all: () => [whole.min, whole.max],
  };
  for (const button of document.querySelectorAll("button[data-zoom]")) {
    button.addEventListener("click", () => {
      const first = charts.find((each) => each.overTime);
      const { min, max } = first.plot.scales.x;
      zoomTo(...zooms[button.dataset.zoom](min, max));
    });
  }

  let drawnFor = width();
  addEventListener("resize", () => { if (width() !== drawnFor) { drawnFor = width(); draw(); } });
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", draw);
  addEventListener("beforeprint", () => {
    document.documentElement.dataset.print = "1";
    for (const each of document.querySelectorAll("details:not([open]):not([data-long])")) { each.open = true; each.dataset.closed = "1"; }
    draw();
  });
  addEventListener("afterprint", () => {
    delete document.documentElement.dataset.print;
    for (const each of document.querySelectorAll("details[data-closed]")) { each.open = false; delete each.dataset.closed; }
    draw();
  });
  draw();
})();
