# Writes the text that the demo trains on: short tales from a small grammar of our own. The same seed gives the same
# text. A line is filled up with blanks to 192 bytes, so that a row of the demo's batches is one tale.
#   awk -v seed=1 -v tales=1600 -f make_text.awk > tales.txt

function pick(list,    words, n) {
    n = split(list, words, "|")
    return words[1 + int(rand() * n)]
}

function say(text) { tale = tale (tale == "" ? "" : " ") text }

BEGIN {
    srand(seed)
    for (t = 0; t < tales; t++) {
        tale = ""
        name = pick("Carl|Emil|Hugo|Ida|Lena|Nora|Ruth|Vera")
        place = pick("river|canal|mill|pond|stream|weir")
        say("Once there was a " pick("young|kind|quiet|clever|brave|gentle") " " pick("miller|sailor|farmer|child|diver|baker") \
            " named " name ".")
        say("Every " pick("morning|evening|day") " " name " " pick("walked to|cared for|sat beside") " the " place ".")
        say("One day the " place " was " pick("very high|almost dry|under ice|full of weed") ".")
        say("So " name " " pick("carried stones|pulled the rope|turned the wheel|lifted the gate") " until " \
            pick("the rain was over|the stars were out|the sun was warm|dawn came") ".")
        say("And " name " was " pick("glad|proud|tired") ".")
        printf "%-191s\n", tale
    }
}
