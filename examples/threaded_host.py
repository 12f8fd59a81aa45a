from threading import Thread

from abeyance.actors import AgentSpec, HostedRuntime
from abeyance.actors.providers import AnthropicProvider

provider = AnthropicProvider()


def serve(host: HostedRuntime, name: str, question: str) -> None:
    agent = host.add_agent(AgentSpec(name=name, provider=provider, model="claude-opus-4-5"))
    agent.send(question, author="user", id=f"{name}-1")
    agent.wait_idle()
    print("\n".join(f"{name} | {message.author}: {message.text}" for message in agent.transcript()))


with HostedRuntime("state/") as host:
    questions = {"ana": "What is a hold?", "bo": "What is a wait?"}
    threads = [Thread(target=serve, args=(host, *question)) for question in questions.items()]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
