#!/usr/bin/env bash
# The HTML page in headless Chromium: the actions are drawn, an action can be pointed at, 32 x 128 is no problem.
. "$(dirname "$0")/common.bash"
browser=$(command -v chromium || command -v chromium-browser || command -v google-chrome) || exit 77
cd "$scratch"

# open PAGE[#ACTION]: the page as it is after drawing, in $out.
open() {
    HOME=$scratch timeout 120 "$browser" --headless --no-sandbox --disable-gpu --disable-dev-shm-usage \
        --user-data-dir="$scratch/profile" --window-size=1600,900 --virtual-time-budget=5000 \
        --dump-dom "file://$scratch/$1" >"$out" 2>"$err" || fail "$browser could not open $1"
}
drawn() { grep -oE 'data-drawn="[0-9]+"' "$out" | tr -dc 0-9; }

"$SLUICE" show --schedule 1F1B --ranks 4 --microbatches 8 -o small.html
open small.html
[ "$(drawn)" -eq 64 ] || fail "$(drawn) of 64 actions were drawn"
for stage in 0 1 2 3; do
    for microbatch in 0 1 2 3 4 5 6 7; do
        prints "<li>${stage}F$microbatch</li>"
        prints "<li>${stage}B$microbatch</li>"
    done
done
prints "4 ranks, 4 stages, 8 microbatches, makespan 33, bubble 27.3 %"

# Pointing at an action says what it is, when it runs and what is held meanwhile.
open 'small.html#1B2'
grep -oE 'id="status"[^<]*' "$out" >status
for part in 1B2 backward "stage 1" "microbatch 2" "rank 1" "start 14, end 16" "memory 3 in 3 slots"; do
    grep -qF "$part" status || fail "the status line lacks '$part': $(cat status)"
done

# The pointer over an action opens the tip; the wheel zooms in at the pointer, dragging moves, "fit" shows all again.
cat >moves.js <<'EOF'
<script>
const box = canvas.getBoundingClientRect(), action = byText.get("2F3");
const x = box.left + (xOf(action.start) + xOf(action.end)) / 2, y = box.top + yOf(action.rank) + lanes.compute / 2;
const point = (type, dx) => canvas.dispatchEvent(new PointerEvent(type, { pointerId: 1, clientX: x + dx, clientY: y }));
canvas.setPointerCapture = () => {}; /* there is no real pointer to capture */
const said = [];
const steps = [
  () => { point("pointermove", 0); said.push("tip " + tip.hidden + " " + tip.textContent.replace(/\n/g, "; ")); },
  () => canvas.dispatchEvent(new WheelEvent("wheel", { deltaY: -1200, clientX: x, clientY: y })),
  () => { said.push("zoomed " + document.body.dataset.drawn + " " + (actionAt(x - box.left, y - box.top) === action)); },
  () => { const from = view.from; point("pointerdown", 0); point("pointermove", -100); point("pointerup", -100);
          said.push("dragged " + (view.from > from)); },
  () => element("fit").click(),
  () => { said.push("fits " + document.body.dataset.drawn); element("find").value = "3b7";
          element("find").dispatchEvent(new Event("input")); },
  () => { said.push("found " + kept.text); document.body.dataset.said = said.join(" | "); },
];
for (const step of steps) { step(); draw(); } /* nothing asks for frames here, so they are drawn by hand */
</script>
EOF
sed '/^<\/body>/{
r moves.js
N
}' small.html >moved.html
open moved.html
grep -oE 'data-said="[^"]*"' "$out" >said || fail "the moves did not come to their end"
for part in "tip false 2F3; forward, stage 2, microbatch 3; rank 2; start" "dragged true" "fits 64" "found 3B7"; do
    grep -qF "$part" said || fail "the page lacks '$part': $(cat said)"
done
zoomed=$(grep -oE 'zoomed [0-9]+ true' said | tr -dc 0-9) || fail "zooming lost the action under the pointer: $(cat said)"
[ "$zoomed" -lt 40 ] || fail "zooming in left $zoomed of 64 actions"

# A title from a hostile file name stays text.
"$SLUICE" plan --schedule GPipe --ranks 2 --microbatches 2 -o '<img src=x onerror=alert(1)>.csv'
"$SLUICE" show '<img src=x onerror=alert(1)>.csv' -o title.html
open title.html
! grep -q '<img' "$out" || fail "the title became markup"
prints '&lt;img src=x'

"$SLUICE" show --schedule ZBVZeroBubble --ranks 32 --microbatches 128 --costs comm=0.1 -o large.html
open large.html
[ "$(drawn)" -eq $((64 * 128 * 3)) ] || fail "$(drawn) actions of 32 x 128 were drawn"

# The SVG is well-formed: a browser shows an error page otherwise.
"$SLUICE" show --schedule DualPipeV --ranks 4 --microbatches 10 -o page.svg
open page.svg
! grep -q parsererror "$out" || fail "page.svg is not well-formed"
prints "<title>"
