# Writes the text that the demo trains on: short tales from a small grammar of our own. The same seed gives the same text.
#   awk -v seed=1 -v tales=900 -f make_text.awk > tales.txt

function pick(list,    words, n) {
    n = split(list, words, "|")
    return words[1 + int(rand() * n)]
}

function say(text) { tale = tale (tale == "" ? "" : " ") text }

BEGIN {
    srand(seed)
    for (t = 0; t < tales; t++) {
        tale = ""
        name = pick("Anna|Carl|Emil|Lena|Nora|Otto|Ruth|Vera")
        who = pick("miller|boatman|farmer|girl|boy|baker")
        trait = pick("young|kind|quiet|clever|brave|patient")
        place = pick("river|canal|mill|pond|stream|weir")
        friend = pick("otter|captain|sister|old dog|gardener")
        say("Once there was a " trait " " who " named " name ".")
        say("Every " pick("morning|evening|day") " " name " " pick("walked to|looked after|sat beside") " the " place ".")
        say("One day the " place " was " pick("too full|almost dry|covered with ice|full of leaves") ".")
        say("\"What shall we do?\" asked the " friend ".")
        say("\"We " pick("must open the gate|need a longer rope|will wait for the rain|have to build a dam") ",\" said " name ".")
        say("So " name " and the " friend " " pick("carried stones|pulled the rope|turned the wheel|lifted the gate") " until " \
            pick("the rain had stopped|the stars were out|the sun was warm|the moon was full") ".")
        say("At last the " pick("boat could pass|mill began to turn|fish came back") ", and " name " was " \
            pick("glad|proud|tired but happy") ".")
        say(pick("And the water sang all night.|And they walked home together.|And nobody forgot that day."))
        print tale "\n"
    }
}
