"""The words storybook knows: objects, places and colours."""

# One object a comma; "name=label" where the everyday name is not the icon set's label.
_OBJECTS = """
monkey, dog, wolf, fox, raccoon, cat, lion, tiger, horse, donkey, unicorn, zebra, deer, cow, pig, goat, camel,
llama, giraffe, elephant, rhinoceros, hippopotamus, mouse, rabbit, squirrel=chipmunk, hedgehog, bat, bear, polar
bear, koala, panda, sloth, kangaroo, turkey, chicken, chick=baby chick, penguin, eagle, duck, swan, owl, flamingo,
peacock, parrot, frog, crocodile, turtle, snake, dragon, dinosaur=T-Rex, whale, dolphin, fish, shark, octopus,
seashell=spiral shell, crab, lobster, snail, butterfly, bee=honeybee, ladybug=lady beetle, spider, rose, sunflower,
tulip, daisy=blossom, potted plant, pine tree=evergreen tree, tree=deciduous tree, palm tree, cactus, maple leaf,
mushroom, grapes, watermelon, orange=tangerine, lemon, banana, pineapple, apple=red apple, pear, peach, cherries,
strawberry, blueberries, tomato, avocado, eggplant, potato, carrot, corn=ear of corn, hot pepper, bell pepper,
broccoli, onion, bread, croissant, pretzel, pancakes, cheese=cheese wedge, bacon, hamburger, french fries, pizza,
hot dog, sandwich, taco, egg, popcorn, ice cream, doughnut, cookie, birthday cake, cupcake, lollipop, honey pot,
glass of milk, cup of coffee=hot beverage, teapot, wine glass, beer mug, mountain=snow-capped mountain, volcano,
house, school, factory, castle, church, tent, ferris wheel, circus tent, locomotive, bus, ambulance, police car,
taxi, car=automobile, pickup truck, truck=delivery truck, tractor, motorcycle, bicycle, traffic light=vertical
traffic light, stop sign, anchor, sailboat, boat=speedboat, ship, airplane, helicopter, rocket, flying saucer,
suitcase=luggage, alarm clock, moon=crescent moon, sun, planet=ringed planet, star, cloud, rainbow, umbrella,
snowflake, snowman, fire, pumpkin=jack-o-lantern, christmas tree=Christmas tree, balloon, gift=wrapped gift, trophy,
soccer ball, basketball, kite, teddy bear, glasses, necktie, t-shirt, jeans, scarf, socks, dress, handbag, backpack,
running shoe, crown, top hat, ring, diamond=gem stone, bell, microphone, trumpet, guitar, violin, drum, telephone,
laptop, television, camera, candle, light bulb, book=closed book, mailbox=postbox, pencil, paintbrush, scissors,
key, hammer, telescope, door, bed, chair, bathtub, basket, bucket, shopping cart, gorilla, leopard, bison, boar,
sheep=ewe, hamster, beaver, otter, skunk, rooster, dove, goose, phoenix, lizard, seal, blowfish, jellyfish, shrimp,
squid, oyster, ant, beetle, spider web, scorpion, bouquet, four leaf clover, melon, mango, kiwi=kiwi fruit, coconut,
cucumber, garlic, peanuts, pea pod, baguette=baguette bread, bagel, waffle, steak=cut of meat, burrito, spaghetti,
sushi, pie, chocolate bar, cocktail=cocktail glass, bubble tea, spoon, globe=globe showing Americas, compass,
fountain, carousel=carousel horse, slide=playground slide, tram, fire engine, scooter=motor scooter, skateboard,
roller skate, canoe, parachute, satellite, hourglass=hourglass done, watch, tornado, baseball, volleyball, boxing
glove, sled, target=bullseye, yo-yo, dice=game die, puzzle piece, yarn, sunglasses, gloves, shorts, graduation cap,
lipstick, headphones=headphone, radio, saxophone, accordion, battery, computer=desktop computer, floppy disk,
magnifying glass=magnifying glass tilted left, flashlight, lantern=red paper lantern, scroll, coin, envelope,
package, briefcase, calendar, ruler=straight ruler, trash can=wastebasket, padlock=locked, axe, shield,
saw=carpentry saw, wrench, gear, magnet, ladder, microscope, syringe, mirror, sofa=couch and lamp, toilet, broom,
toothbrush
"""

# Places are drawn by code in backgrounds.py; a phrase completes "a cat ...", the first is used most.
PLACES: dict[str, tuple[str, ...]] = {
    "beach": ("on the beach", "on a beach", "at the beach"),
    "meadow": ("on the grass", "in a meadow", "on a green field"),
    "sea": ("on the sea", "at sea", "on the water"),
    "desert": ("in the desert", "in a desert"),
    "snow": ("in the snow", "on snow", "in winter"),
    "forest": ("in the forest", "in a forest", "in the woods"),
    "night": ("at night", "in the night"),
    "sunset": ("at sunset", "in the evening"),
    "space": ("in space", "among the stars"),
    "sky": ("in the sky", "in the air"),
}

COLOURS: dict[str, tuple[int, int, int]] = {
    "white": (252, 252, 252),
    "black": (22, 22, 26),
    "grey": (150, 152, 158),
    "red": (220, 60, 60),
    "orange": (245, 155, 60),
    "yellow": (250, 215, 80),
    "green": (110, 190, 105),
    "teal": (70, 175, 170),
    "blue": (85, 140, 225),
    "purple": (150, 105, 205),
    "pink": (248, 172, 200),
    "brown": (150, 108, 78),
}


# Other words for an object, used now and then in captions.
SYNONYMS: dict[str, tuple[str, ...]] = {
    "cat": ("kitten", "kitty"),
    "dog": ("puppy",),
    "rabbit": ("bunny",),
    "horse": ("pony",),
    "car": ("automobile",),
    "boat": ("speedboat",),
    "fish": ("goldfish",),
    "dinosaur": ("t-rex",),
    "flying saucer": ("ufo",),
    "airplane": ("plane",),
    "bicycle": ("bike",),
    "doughnut": ("donut",),
    "hamburger": ("burger",),
    "television": ("tv",),
    "telephone": ("phone",),
    "gift": ("present",),
    "hippopotamus": ("hippo",),
    "rhinoceros": ("rhino",),
    "turtle": ("tortoise",),
    "cup of coffee": ("coffee",),
    "soccer ball": ("football",),
    "tree": ("oak tree",),
    "snake": ("serpent",),
    "ship": ("cruise ship",),
}


# Chosen before training and never in a caption, nor among the names and tags of the icons: "word=what it means".
_HELD_OUT = """
hound=dog, terrier=dog, tabby=cat, stallion=horse, mare=horse, heifer=cow, hog=pig, piglet=pig, hare=rabbit,
chimp=monkey, lioness=lion, tigress=tiger, stag=deer, reindeer=deer, rodent=mouse, alligator=crocodile, toad=frog,
viper=snake, cobra=snake, moth=butterfly, wasp=bee, tarantula=spider, trout=fish, salmon=fish, porpoise=dolphin,
falcon=eagle, hawk=eagle, mallard=duck, hen=chicken, pigeon=dove, fir=pine tree, conifer=pine tree, mandarin=orange,
espresso=cup of coffee, latte=cup of coffee, cottage=house, mansion=house, fortress=castle, cathedral=church, sedan=car,
limousine=car, motorbike=motorcycle, airliner=airplane, chopper=helicopter, parasol=umbrella, tiara=crown,
armchair=chair, settee=sofa, spectacles=glasses, kettle=teapot, seashore=beach, coast=beach, lawn=meadow,
prairie=meadow, woodland=forest, jungle=forest, dunes=desert, blizzard=snow, galaxy=space, twilight=sunset
"""


def _pairs(text: str) -> list[tuple[str, str]]:
    """Split "a=b, c" into pairs; an entry without "=" is its own partner."""
    entries = (entry.strip().split("=") for entry in text.replace("\n", " ").split(",") if entry.strip())
    return [(entry[0].strip(), entry[-1].strip()) for entry in entries]


def object_labels() -> dict[str, str]:
    """Map every object name to its label in emojibase."""
    return dict(_pairs(_OBJECTS))


def held_out() -> dict[str, str]:
    """Map every word that training never saw to the object or place it stands for."""
    return dict(_pairs(_HELD_OUT))


_UNCOUNTED = frozenset(
    """bacon blueberries bread broccoli cherries corn dice fire garlic glasses gloves grapes headphones jeans
    pancakes peanuts popcorn scissors shorts socks spaghetti sunglasses sushi yarn""".split()
)


def article(name: str) -> str:
    """Return the noun phrase for a name: "a cat", "an owl", "grapes"."""
    if name in _UNCOUNTED or name == "french fries":
        return name
    return f"{'an' if name[0] in 'aeio' or name in {'umbrella', 'hourglass'} else 'a'} {name}"
