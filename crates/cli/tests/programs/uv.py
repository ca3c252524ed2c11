# asyncio over uvloop: an echo server, and a client with four connections.
#   uv.py serve PORT
#   uv.py get ADDRESS PORT
import asyncio
import sys

import uvloop


async def answer(reader, writer):
    while line := await reader.readline():
        writer.write(line)
        await writer.drain()
    writer.close()


async def serve(port):
    server = await asyncio.start_server(answer, "0.0.0.0", port)
    await server.serve_forever()


async def one(address, port, name):
    reader, writer = await asyncio.open_connection(address, port)
    for number in range(25):
        line = b"%d %d %s\n" % (name, number, b"x" * number * 100)
        writer.write(line)
        assert await reader.readline() == line
    writer.close()
    await writer.wait_closed()


async def get(address, port):
    await asyncio.gather(*[one(address, port, name) for name in range(4)])
    print("100 answers")


loop = uvloop.new_event_loop()
asyncio.set_event_loop(loop)
if sys.argv[1] == "serve":
    loop.run_until_complete(serve(int(sys.argv[2])))
else:
    loop.run_until_complete(get(sys.argv[2], int(sys.argv[3])))
