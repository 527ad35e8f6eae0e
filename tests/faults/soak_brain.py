"""What a program of a soak asks about knowledge, and which objects and edges there must be then."""

from __future__ import annotations

from dataclasses import dataclass, field
from uuid import UUID, uuid5

from soak_program import Program

from isotherm.pipeline.brain.documents import Document
from isotherm.pipeline.brain.objects import NewObject
from isotherm.pipeline.brain.result_sets import SearchContext
from isotherm.pipeline.brain.write_kinds import Saved
from isotherm.tasks import producers

_NAMES = UUID("5f0c6f4e-6a0e-4a53-9a5e-0d1f7d6a1c55")
_OBJECTS, _FILES = 25, 6
_LABELS = ("about", "owns")


@dataclass
class BrainCalls(Program):
    """Args: objects: title and content by id; edges: notes by source, target and label; files: text of each by its id."""

    objects: dict[UUID, tuple[str, str]] = field(default_factory=dict)
    edges: dict[tuple[UUID, UUID, str], str] = field(default_factory=dict)
    files: dict[UUID, str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        super().__post_init__()
        self.library = producers.knowledge(f"library{self.number}")

    def ids(self) -> list[UUID]:
        return [uuid5(_NAMES, f"{self.number}/{n}") for n in range(_OBJECTS)]

    def put(self) -> None:
        object_id, title, text = self.dice.choice(self.ids()), f"title {self.count}", self.text()
        self.keep(
            lambda: producers.put(
                self.knowledge, "note", object_id=object_id, title=title, content=text, key=self.key()
            )
        )
        self.objects[object_id] = (title, text)

    def put_many(self) -> None:
        chosen = {i: (f"title {self.count}", f"{self.text()} {i}") for i in self.dice.sample(self.ids(), 4)}
        objects = [NewObject(i, "note", title, "", text) for i, (title, text) in chosen.items()]
        self.keep(lambda: producers.put_many(self.knowledge, objects, key=self.key()))
        self.objects |= chosen

    def save(self) -> None:
        """What an agent found out, knows or wants to remember."""
        saver = self.dice.choice((producers.save_discovery, producers.save_fact, producers.save_memory))
        title, text = f"saved {self.count}", self.text()
        done = self.insist(lambda: saver(self.knowledge, Saved(title, content=text), key=self.key()))
        self.operations.add(done.operation_id)
        self.objects[done.ids[0]] = (title, text)

    def take_in(self) -> None:
        """Files; each of them may be on its way still with the text it had before."""
        chosen = self.dice.sample(range(_FILES), 2)
        documents = [
            Document(uuid5(_NAMES, f"file/{self.number}/{n}"), f"file{n}.md", f"# file {n}\n\nkelp {self.key()} of {n}")
            for n in chosen
        ]
        self.keep(lambda: producers.import_files(self.library, documents, key=self.key()))
        self.files |= {each.id: each.text for each in documents}

    def link(self) -> None:
        if len(self.objects) > 1:
            [source, target], label = self.dice.sample(list(self.objects), 2), self.dice.choice(_LABELS)
            note = f"note {self.count}"
            self.keep(lambda: producers.link(self.knowledge, source, target, label, note=note, key=self.key()))
            self.edges[source, target, label] = note

    def unlink(self) -> None:
        if shown := [e for e in self.edges if e[0] in self.objects and e[1] in self.objects]:
            edge = self.dice.choice(shown)
            self.keep(lambda: producers.unlink(self.knowledge, *edge, key=self.key()))
            del self.edges[edge]

    def delete(self) -> None:
        if self.objects:
            object_id = self.dice.choice(list(self.objects))
            self.keep(lambda: producers.soft_delete(self.knowledge, object_id, key=self.key()))
            del self.objects[object_id]  # its edges come back with it

    def erase(self) -> None:
        """An object is forgotten for good, and its edges, whether it was in sight or not."""
        object_id = self.dice.choice(self.ids())
        self.erasures.add(self.keep(lambda: producers.forget_objects(self.knowledge, [object_id], key=self.key())))
        self.objects.pop(object_id, None)
        self.edges = {edge: note for edge, note in self.edges.items() if object_id not in edge}

    def search(self) -> None:
        if not self.objects:
            return
        context = SearchContext()
        answer = self.insist(lambda: producers.search(self.knowledge, "kelp", limit=3, context=context))
        found = [hit.object.id for hit in answer.results]
        if answer.cursor is not None:
            cursor = answer.cursor
            found += [r.object.id for r in producers.continue_(self.knowledge, cursor, context).results]
        for finder in (producers.find_exact, producers.find_objects):
            found += [r.object.id for r in self.insist(lambda f=finder: f(self.knowledge, "title")).results]  # type: ignore[misc]
        if not set(found) <= self.objects.keys():
            self.wrong.append(f"a search of caller {self.number} found what is not there")

    def read_object(self) -> None:
        """What was stored is read back at once, whatever is hurt; and what is around it."""
        if not self.objects:
            return
        object_id = self.dice.choice(list(self.objects))
        read = self.insist(lambda: producers.read(self.knowledge, object_id))
        if (read.title, read.content) != self.objects[object_id]:
            self.wrong.append(f"object {object_id} of caller {self.number} was read as it was not stored")
        self.insist(lambda: producers.list_children(self.knowledge, object_id))
        self.insist(lambda: producers.expand(self.knowledge, object_id, hops=2))
        self.insist(lambda: producers.find_links(self.knowledge, _LABELS[0], "note"))
