# Writes the text that the demo trains on: short tales from a small grammar of our own. The same seed gives the same text.
#   awk -v seed=1 -v tales=230 -f make_text.awk > tales.txt

function pick(list,    words, n) {
    n = split(list, words, "|")
    return words[1 + int(rand() * n)]
}

function capital(text) { return toupper(substr(text, 1, 1)) substr(text, 2) }

function say(text) { tale = tale (tale == "" ? "" : " ") text }

function weather() {
    return pick("the rain had stopped|the wind was cold|the sun was warm|the fog lay low|the snow was melting|the stars were out|" \
                "the clouds were grey|the air was still|the moon was full|the morning was bright")
}

function opening() {
    say(pick("Once there was|Long ago there was|In the valley lived|By the old mill lived|Near the bridge lived") \
        (trait ~ /^[aeiou]/ ? " an " : " a ") trait " " who " named " name ".")
    say(pick("Every day|Every morning|Each evening|When the day began|Before the bells rang") " " name " " \
        pick("walked to|looked after|went down to|took care of|sat beside|listened to") " the " place ".")
}

function trouble() {
    say("One day " weather() " and the " place " was " pick("too full|almost dry|blocked by a log|covered with ice|full of leaves|" \
        "very loud|strangely quiet") ".")
    say(pick("\"What shall we do?\"|\"Who can help us?\"|\"Where does the water go?\"|\"Is it safe?\"") " asked the " friend ".")
    say(pick("\"We must open the gate,\"|\"We need a longer rope,\"|\"We will wait for the boat,\"|\"We have to be patient,\"|" \
        "\"We will build a small dam,\"") " said " name ".")
}

function work() {
    say("So " name " and the " friend " " pick("carried stones|cut the branches|pulled the rope|turned the wheel|dug a channel|" \
        "lifted the gate|counted the boats|lit a lamp") " until " weather() ".")
    say("First the water was " pick("slow|brown|deep|low|wild") ", then it was " pick("clear|calm|high|quick|gentle") ".")
    if (rand() < 0.6)
        say("A " pick("heron|fox|duck|farmer|miller|child|traveller|swan") " " pick("watched from the bank|came to help|passed by|" \
            "smiled at them|brought them bread|sang a song") ".")
}

function ending() {
    say("At last the " pick("boat could pass|mill began to turn|fields were green again|river found its way|lock was open|" \
        "fish came back") ", and " name " was " pick("glad|tired but happy|proud|at peace|very hungry") ".")
    say(pick("\"Thank you,\"|\"Well done,\"|\"Come again,\"|\"Let us rest,\"") " said the " friend ".")
    say(pick("And the water sang all night.|And they walked home together.|And nobody forgot that day.|And the river went on to the sea.|" \
        "And in spring they did it again."))
}

BEGIN {
    srand(seed)
    for (t = 0; t < tales; t++) {
        tale = ""
        name = pick("Anna|Bela|Carl|Dora|Emil|Frida|Gustav|Hanna|Ivo|Jana|Karl|Lena|Milo|Nora|Otto|Petra|Ruth|Simon|Tilda|Vera")
        who = pick("keeper|miller|boatman|farmer|weaver|girl|boy|teacher|baker|carpenter")
        trait = pick("young|old|kind|quiet|clever|brave|careful|cheerful|patient|strong")
        place = pick("river|canal|lock|mill|pond|stream|harbour|weir|ditch|spring")
        friend = pick("miller|otter|neighbour|captain|sister|brother|old dog|ferryman|gardener|smith")
        opening()
        trouble()
        work()
        if (rand() < 0.5)
            work()
        ending()
        print tale "\n"
    }
}
