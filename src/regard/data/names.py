"""Names that English and German spell alike, for derived pairs, and words that sound like names."""

from __future__ import annotations

from random import Random


def _words(text: str) -> tuple[str, ...]:
    return tuple(text.split())


MASCULINE = _words(
    """Aaron Adem Ahmed Akira Alan Albert Aldo Alejandro Alexander Alfred Amir Andreas Andrzej Anton Antonio Arjun
    Arthur Arvid Axel Bastian Ben Bernard Bilal Bjarne Bogdan Bruno Burak Carlos Cedric Chen Christian Claude
    Conrad Cristiano Damian Daniel David Deniz Dieter Diego Dimitri Dirk Dominik Dylan Edgar Eduardo Edward Elias
    Emanuel Emil Emre Enrico Erik Ernesto Ethan Fabian Farid Felipe Felix Fernando Finn Florian Francesco Frank
    Fred Gabriel George Gerald Giovanni Goran Gordon Guido Gustav Hakan Harald Harry Hassan Heinrich Henri Henry
    Hiroshi Hugo Ibrahim Igor Ismail Ivan Ivo Jack Jakob Jamal James Jan Jannik Javier Jim Joachim John Jonathan
    Jorge Joseph Juan Julian Kamil Karim Karl Ken Kenji Kevin Khalid Kofi Kurt Kwame Lars Laurent Leif Leo Leon
    Leonardo Liam Lorenzo Luca Ludwig Luis Magnus Malik Manuel Marcel Marco Mario Mark Martin Matteo Mehmet
    Michael Miguel Mike Milan Mohamed Moritz Nathan Nikhil Nikolai Noah Norbert Oleg Oliver Olaf Omar Oscar Otto
    Owen Pablo Paolo Patrick Paul Pavel Pedro Peter Philip Piotr Rafael Rajesh Ralf Ramon Ravi Raymond Reza
    Ricardo Richard Robert Robin Roland Roman Ruben Rudolf Ryan Salvatore Samir Samuel Sebastian Sergei Simon
    Stefan Sven Takeshi Tariq Theodor Thomas Till Tim Tobias Tom Umberto Uwe Victor Viktor Vincent Walter Wei
    Werner Wilhelm William Yannick Yuri Yusuf Zoltan José François Søren Łukasz André Jürgen Günther Jörg Björn
    Ángel Çetin Mikołaj Tomáš"""
)
FEMININE = _words(
    """Abigail Ada Adriana Agata Agnes Aida Aisha Akiko Alba Alice Alina Amalia Amanda Amina Amy Ana Anastasia Andrea
    Angela Anita Anja Anna Annika Antonia Ariana Astrid Ayumi Barbara Beatrice Bella Betty Bianca Birgit Brenda
    Brigitte Camila Carla Carmen Carolina Caroline Catherine Cecilia Charlotte Chiara Chloe Claire Clara Claudia
    Cora Cristina Dagmar Daniela Daria Diana Dolores Dora Doris Edith Elena Elif Elisa Elisabeth Ella Ellen Elsa
    Emily Emma Erika Esther Eva Fatima Fiona Florence Franka Freya Frida Gabriela Gisela Giulia Gloria Grace Greta
    Gudrun Hannah Hatice Heather Hedwig Heidi Helen Helena Hilda Ida Ilona Ines Ingrid Irina Isabel Ivana Jana
    Jane Jasmin Jennifer Jessica Johanna Jolanda Judith Julia Karen Karin Katarina Kate Katharina Keiko Kim
    Kirsten Lara Latifa Laura Lea Leila Lena Leonie Linda Lisa Lucia Lydia Magda Maja Manuela Margaret Maren Maria
    Marta Mary Mathilda Melanie Mia Michiko Mila Miriam Monica Monika Nadia Naomi Natalia Nicole Nina Nora Olga
    Olivia Pamela Patricia Paula Petra Rachel Rebecca Renate Rita Rosa Ruth Sabine Sakura Samira Sandra Sarah
    Selma Simone Sofia Sonja Stella Susan Svetlana Tamara Tanja Tatiana Teresa Theresa Ulrike Ursula Valentina
    Vanessa Vera Veronika Victoria Viola Wilma Yasemin Yoko Yuki Yvonne Zara Zeynep Zofia Zoë Renée Inès Käthe
    Bärbel Małgorzata Åsa Šárka Noémie Begoña"""
)
SURNAMES = _words(
    """Abbott Ackermann Adams Adler Agarwal Aguilar Akhtar Albrecht Almeida Andersson Arnold Bachmann Baker Baldwin
    Banerjee Barbosa Barker Bauer Baumann Becker Bennett Bergmann Bernstein Bianchi Blackwell Bosch Brandt Braun
    Brown Bryant Burton Campbell Cardoso Carter Castillo Chandler Chang Chavez Cohen Collins Cooper Costa Crawford
    Dahl Davidson Dietrich Diaz Dubois Dvorak Ebert Eriksson Esposito Farooqi Ferrari Fischer Fitzgerald Fontaine
    Foster Franke Fujimoto Garcia Gardner Gibson Goldberg Gomez Graham Gruber Gupta Haas Hansen Harrison Hartmann
    Hashimoto Heller Herrera Hoffmann Horvat Hughes Hussain Ito Ivanov Jackson Jansen Jensen Johnson Kaminski
    Kaufmann Keller Khan Kimura Klein Kobayashi Koch Kowalski Krause Krueger Kumar Lang Larsen Lehmann Lewandowski
    Lindqvist Lopez Maier Marino Martinez Mayer Mbeki Mendoza Meyer Miller Mitchell Moreau Morgan Morrison Murphy
    Nakamura Navarro Nelson Neumann Nguyen Nielsen Novak Nowak Okafor Okonkwo Oliveira Olsen Palmer Papadopoulos
    Parker Patel Pereira Petrov Pfeiffer Popescu Quinn Ramirez Reynolds Richter Rivera Robinson Romero Rossi Roth
    Russell Saito Sanchez Santos Sato Sawyer Schmidt Schneider Schubert Schulz Schuster Seidel Sharma Simpson
    Singh Smith Sokolov Sommer Stevenson Sullivan Suzuki Svensson Takahashi Tanaka Taylor Thompson Torres Turner
    Vargas Virtanen Vogel Voss Wagner Walker Watanabe Weber Wilson Winkler Wolff Wright Yamamoto Yılmaz Müller
    Schröder Böhm Köhler Nuñez Pérez Peña Ångström Håkansson Çelik Łukasiewicz Dvořák Lefèvre Gonçalves Zhang
    Ziegler Zimmermann"""
)
PLACES = _words(
    """Aachen Aberdeen Abuja Accra Adelaide Alabama Alaska Albuquerque Amsterdam Ankara Antalya Arizona Arkansas
    Atlanta Auckland Augsburg Austin Baltimore Bangkok Bamberg Barcelona Basel Belfast Bergen Berlin Bern
    Bielefeld Bilbao Birmingham Bochum Bogota Bologna Bombay Bonn Bordeaux Boston Bremen Brighton Brisbane Bristol
    Budapest Buffalo Cambridge Cardiff Casablanca Charleston Chicago Cleveland Colombo Colorado Cork Cornwall
    Dakar Dallas Darmstadt Delhi Denver Detroit Dortmund Dover Dresden Dubai Dublin Durban Edinburgh Erfurt Essen
    Florida Frankfurt Freiburg Galway Glasgow Granada Graz Grenoble Haiti Halifax Hamburg Hamilton Hannover Harlem
    Hawaii Heidelberg Helsinki Hiroshima Hokkaido Honolulu Houston Innsbruck Istanbul Izmir Jena Johannesburg
    Kabul Kampala Kansas Karachi Karlsruhe Kassel Kathmandu Kiel Kingston Kobe Konstanz Kyoto Lagos Lahore Leeds
    Leicester Leipzig Lima Lincoln Linz Liverpool London Lyon Madrid Mainz Malaga Malta Manchester Manila Mannheim
    Marburg Maryland Melbourne Memphis Miami Michigan Minneapolis Mombasa Montana Montreal Mumbai Nagoya Nairobi
    Nashville Nebraska Nepal Nevada Newcastle Nottingham Oakland Ohio Oldenburg Oregon Osaka Oslo Ottawa Oxford
    Palermo Panama Paris Passau Perth Philadelphia Phoenix Portland Porto Portsmouth Potsdam Quebec Quito
    Regensburg Richmond Riga Rostock Rotterdam Sacramento Salzburg Santiago Sapporo Seattle Sheffield Singapore
    Southampton Split Stockholm Stuttgart Sydney Tampa Taipei Tangier Tennessee Texas Tokyo Toledo Toronto Trier
    Tulsa Uppsala Utah Utrecht Valencia Vancouver Vermont Vietnam Virginia Weimar Wellington Wiesbaden Winnipeg
    Winterthur Wuppertal Göttingen Lübeck Münster Osnabrück Würzburg Tübingen Malmö Århus Łódź Córdoba Gdańsk
    Besançon Reykjavík Yokohama York"""
)
STREETS = _words(
    """Baker Bridge Cedar Chapel Cherry Chestnut Church College Elm Forest Franklin Garden Grove High Highland Hill
    Jefferson King Lake Lincoln Main Maple Market Mill Monroe Oak Orchard Park Pearl Pine Queen River School
    Station Sunset Union Victoria Walnut Washington Water Willow Windsor"""
)
GERMAN_STREETS = _words(
    """Ahornstraße Bachstraße Bahnhofstraße Beethovenstraße Bergstraße Birkenallee Blumenstraße Burggasse Dorfstraße
    Eichenallee Feldstraße Friedrichstraße Gartenstraße Goethestraße Hauptstraße Kirchgasse Lindenallee
    Lindenstraße Marktgasse Mozartstraße Parkstraße Ringstraße Rosenstraße Schillerstraße Schulstraße Talstraße
    Waldstraße Wiesenstraße"""
)
_ONSETS = _words("b br c ch d dr f fr g gr h j k kl kr l l m m n n p pr qu r r s s sch sh st t t th tr v v w y z")
_VOWELS = _words("a a a a e e e e i i i o o o u u ai au ei ia ie oo ou y ä ö ü é")
_CODAS = ("",) * 24 + _words("ck d k l l ll m n n n nd ng r r rd rk s s sch st t tt x z")


def made_up_name(random: Random) -> str:
    """A word of two or three random syllables.

    Examples:
        >>> [made_up_name(Random(seed)) for seed in range(3)]
        ['Satud', 'Ditäl', 'Ohyschnird']
    """
    count = random.choice((2, 2, 2, 2, 3, 3))
    syllables = (random.choice(_ONSETS) + random.choice(_VOWELS) + random.choice(_CODAS) for _ in range(count))
    first = random.choice(_VOWELS) if random.random() < 0.2 else ""
    return (first + "".join(syllables)).capitalize()


def street(random: Random) -> str:
    """A street that is feminine in German, such as ``Baker Street``."""
    if random.random() < 0.3:
        return random.choice(GERMAN_STREETS)
    pools = STREETS, SURNAMES, (made_up_name(random),)
    return f"{random.choice(random.choice(pools))} {random.choice(('Street', 'Street', 'Road', 'Avenue'))}"
