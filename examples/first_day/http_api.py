"""An agent is held for two hours; somebody with the admin token ends the wait over HTTP.

Run it with a directory for its state. The provider is scripted, so that it needs no key. A host
keeps its token where its other secrets are; `secrets.token_urlsafe(32)` makes one.
"""

import secrets
import sys

import httpx2
import trio

from abeyance.actors import AgentSpec, HttpApi, open_runtime
from abeyance.actors.testing import ScriptedProvider, fail, reply


async def main(state: str) -> None:
    token = secrets.token_urlsafe(32)
    provider = ScriptedProvider([fail(429, retry_after=7_200), reply("At last.")])
    async with open_runtime(state, http=HttpApi(port=0, admin_token=token)) as runtime:
        ana = await runtime.add_agent(AgentSpec(name="ana", provider=provider, model="m"))
        await ana.send("Hello?")
        await ana.wait_idle()
        async with httpx2.AsyncClient(base_url=str(runtime.http_url)) as client:
            (wait,) = (await client.get("/v1/waits")).json()["waits"]
            print(f"{wait['agent']} may not call {wait['model']}")
            refused = await client.post("/v1/release", json={"agent": "ana"})
            print(f"without the token: {refused.status_code} {refused.json()['error']['code']}")
            released = await client.post(
                "/v1/release",
                json={"agent": "ana", "requester": "web"},
                headers={"authorization": f"Bearer {token}"},
            )
            print(f"with it: {released.json()['released'][0]['reach']}")
        await ana.wait_idle()
        async for message in ana.transcript():
            print(f"{message.author}: {message.text}")


trio.run(main, sys.argv[1])
