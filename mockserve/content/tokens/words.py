"""Common English words, the most frequent first."""

_COMMON_WORDS = """
    the of and to a in is that it for was on are as with they at be this from have or by one had not but what all
    were when we there can an your which their said if do will each about how up out them then she many some so these
    would other into has more her two like him see time could no make than first been its who now people my made over
    did down only way find use may water long little very after words called just where most know get through back
    much before go good new write our used me man too any day same right look think also around another came come
    work three word must because does part even place well such here take why things help put years away again off
    went old number great tell men say small every found still between name should home big give air line set own
    under read last never us left end along while might next sound below saw both few those always looked show large
    often asked house world going want school until form food keep feet land side without boy once animal life enough
    took four head above kind began almost live page got earth need far hand high year mother light parts country
    father let night picture being study second soon since white ever paper hard near better best across during today
    however sure knew try told young sun thing whole hear example heard several change answer room sea against top
    turned learn point city play toward five using himself usually money seen car morning body upon family later turn
    move face door cut done group true half red fish plants living black eat short united run book gave order open
    ground cold really table tree course front space inside ago sad early learned strong list cost map test
    """
WORDS = tuple(_COMMON_WORDS.split())
"""Words of at most seven letters: most vocabularies have one token for each with the space before it."""
