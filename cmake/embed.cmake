# Writes INPUT as a C string constant NAME into OUTPUT: pages stay files of their own and travel inside the library.
file(READ ${INPUT} bytes HEX)
string(REGEX REPLACE "([0-9a-f][0-9a-f])" "0x\\1," bytes "${bytes}")
string(REGEX REPLACE "((0x..,){24})" "\\1\n" bytes "${bytes}")
file(WRITE ${OUTPUT} "/* Made from a file of the source tree by embed.cmake. */\nstatic const char ${NAME}[] = {\n${bytes}0\n};\n")
